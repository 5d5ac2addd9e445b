// Elements are made here and nowhere else. Whatever a model, a tool or a user said becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";
const NODE_CHARS = 2000; // a text node that grows without end is copied as a whole with each piece

/** Make an element: properties as in JavaScript, `data` for data-*, other names with a dash as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** Append text; the cost is that of the piece, not of what stands there already. */
export function write(parent, text) {
  if (!text) return;
  const last = parent.lastChild;
  if (last?.nodeType === Node.TEXT_NODE && last.length < NODE_CHARS) last.appendData(text);
  else parent.append(text);
}

export function show(element, visible) {
  element.hidden = !visible;
}

/** Show a sentence in an element, or hide it where there is none. */
export function say(element, sentence) {
  element.textContent = sentence ?? "";
  element.hidden = !sentence;
}

/** Open a dialog and wait for its end: true when its form was submitted. */
export function asked(dialog, form, cancel) {
  const listening = new AbortController();
  const { signal } = listening;
  return new Promise((resolve) => {
    const settle = (answer) => {
      listening.abort(); // at once: the dialog may be opened for another question before it says that it closed
      dialog.close();
      resolve(answer);
    };
    form.addEventListener("submit", () => settle(true), { signal });
    cancel.addEventListener("click", () => settle(false), { signal });
    dialog.addEventListener("cancel", () => settle(false), { signal });
    dialog.addEventListener("close", () => dialog.open || settle(false), { signal });
    dialog.showModal();
  });
}
