// The files of the conversation's workspace, with previews and downloads. No content becomes markup: text is a text node, and an image
// an <img>, where a browser runs no script.

import { byId, icon, make } from "../dom.js";
import { ago, joined } from "../figures.js";
import { bytes } from "./contents.js";

const PREVIEW_BYTES = 64 * 1024;
const IMAGES = /\.(png|jpe?g|gif|webp)$/i;

export async function filesPanel({ api, ask, pictures }) {
  const { items, complete } = await ask("/workspace/files");
  if (!items.length) return [make("p", { className: "note" }, "No files yet. What the agent writes into its workspace is listed here.")];
  // The row of an unchanged file stays, with its open preview.
  const kept = new Map([...byId("inspector-panel").querySelectorAll(".workspace-file")].map((row) => [row.dataset.file, row]));
  const rows = items.map((file) => {
    const address = `${file.url}#${file.modified_at}`; // the fragment keeps apart what one name held at two times
    return kept.get(address) ?? fileRow({ api, pictures, file, address });
  });
  return [...rows, ...(complete ? [] : [make("p", { className: "note" }, "There are more files. The workspace has too many to list them all.")])];
}

function fileRow({ api, pictures, file: { path, size_bytes: size, modified_at: at }, address }) {
  const body = make("div", { className: "file-body" });
  const figures = make("span", { className: "figures" }, joined(bytes(size), ago(at)));
  const details = make("details", { className: "variable" }, make("summary", {}, make("code", {}, path), figures), body);
  details.addEventListener("toggle", async () => {
    if (!details.open || body.hasChildNodes()) return;
    if (IMAGES.test(path)) body.append(pictures.of({ url: address }, path));
    else body.append(...(await textPreview(api, address, size)));
  });
  const download = pictures.file({ url: address, name: path.split("/").pop() });
  download.className = "quiet round small";
  download.title = "Download";
  download.setAttribute("aria-label", `Download ${path}`);
  download.replaceChildren(icon("down"));
  return make("div", { className: "workspace-file", data: { file: address } }, details, download);
}

/** The first part of a file, if it is text. */
async function textPreview(api, address, size) {
  try {
    const data = await firstBytes(await api.request(address));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: true }); // the last character may be cut
    if (text.includes("\0")) throw new TypeError();
    const cut = size > PREVIEW_BYTES ? `The first ${bytes(PREVIEW_BYTES)} of ${bytes(size)}.` : size ? null : "The file is empty.";
    return [...(cut ? [make("p", { className: "note" }, cut)] : []), ...(size ? [make("pre", { tabIndex: 0, dir: "auto" }, text)] : [])];
  } catch (problem) {
    const sentence = problem instanceof TypeError ? "It is no text, so it has no preview." : problem.message;
    return [make("p", { className: "note" }, sentence)];
  }
}

async function firstBytes(response) {
  const reader = response.body.getReader();
  const pieces = [];
  for (let size = 0; size < PREVIEW_BYTES; size += pieces.at(-1).length) {
    const { value, done } = await reader.read();
    if (done) break;
    pieces.push(value);
  }
  reader.cancel();
  return new Blob(pieces).slice(0, PREVIEW_BYTES).arrayBuffer();
}
