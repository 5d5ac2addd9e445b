// The theme: light, dark, or that of the system. This is no module, so that it runs before the page is painted.

(() => {
  const KEY = `smolsessions.theme${new URL("..", document.currentScript.src).pathname.slice(0, -1)}`;

  function use(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    for (const bar of document.querySelectorAll("meta[name=theme-color]")) {
      const { of } = bar.dataset;
      if (theme) bar.media = theme === of ? "all" : "not all";
      else bar.media = `(prefers-color-scheme: ${of})`;
    }
  }

  function stored() {
    try {
      const theme = localStorage.getItem(KEY);
      return theme === "light" || theme === "dark" ? theme : "";
    } catch {
      return ""; // the browser allows no storage
    }
  }

  function mark() {
    document.querySelector(`input[name=theme][value="${stored()}"]`).checked = true;
  }

  use(stored());
  document.addEventListener("DOMContentLoaded", mark);
  document.addEventListener("change", ({ target }) => {
    if (target.name !== "theme") return;
    use(target.value);
    try {
      localStorage.setItem(KEY, target.value);
    } catch {
      // it holds for this page
    }
  });
  window.addEventListener("storage", ({ key }) => {
    if (key !== KEY) return;
    use(stored());
    mark();
  });
})();
