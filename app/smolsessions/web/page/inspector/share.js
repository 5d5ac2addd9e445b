// The share panel: export, import, and the next call as curl and as Python.

import { copied } from "../code.js";
import { make, say } from "../dom.js";

export async function sharePanel({ api, path, view, opened, changed }) {
  const note = make("p", { className: "note wrong", role: "alert", hidden: true });
  const attempt = (act) => async () => {
    try {
      say(note, null);
      await act();
    } catch (problem) {
      say(note, problem.message);
    }
  };
  const download = make("button", { type: "button" }, "Export");
  download.addEventListener("click", attempt(async () => {
    const address = URL.createObjectURL(await api.blob(`${path}/export`));
    make("a", { href: address, download: `${view.id}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }));
  const file = make("input", { type: "file", accept: ".json,application/json", id: "import-file", className: "unseen", tabIndex: -1, "aria-hidden": "true" });
  const upload = make("button", { type: "button" }, "Import …");
  upload.addEventListener("click", () => file.click());
  file.addEventListener("change", attempt(async () => {
    const body = await file.files[0].text();
    file.value = "";
    const made = await api.json("/imports", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    changed(made.id);
    opened(made.id);
  }));
  const address = new URL(document.baseURI);
  const base = `${address.origin}${address.pathname}`.replace(/\/$/, "");
  return [
    make("p", { className: "note" }, "An export holds the whole conversation as JSON. An import makes a new conversation of it."),
    make("div", { className: "actions" }, download, upload, file),
    ...code("As curl", curl(base, view.id)),
    ...code("As Python", python(base, view.id)),
    note,
  ];
}

function curl(base, id) {
  return `curl ${base}/turn \\\n  -H 'Authorization: Bearer KEY' -H 'Content-Type: application/json' \\\n  -d '{"conversation_id": "${id}", "message": "Go on."}'`;
}

function python(base, id) {
  return `from smolsessions import Client\n\nwith Client("${base}", api_key="KEY") as client:\n    turn = client.turn("Go on.", conversation_id="${id}")\n    print(turn.reply)`;
}

function code(label, text) {
  const button = make("button", { type: "button", className: "quiet small", "aria-label": `Copy ${label.toLowerCase()}` }, "Copy");
  button.addEventListener("click", () => copied(text, button));
  return [make("div", { className: "code-head" }, make("p", { className: "label" }, label), button), make("pre", { tabIndex: 0, dir: "ltr" }, text)];
}
