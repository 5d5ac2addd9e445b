// The start of the page: creates its parts and follows the address, which names the open conversation.

import { showAgent } from "./agent_details.js";
import { Agents } from "./agents.js";
import { Api } from "./api.js";
import { rootOf } from "./branches.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { byId, show } from "./dom.js";
import { Heading } from "./heading.js";
import { Inspector } from "./inspector/inspector.js";
import { Keys } from "./keys.js";
import { List } from "./list.js";
import { Pictures } from "./pictures.js";
import { Place } from "./scroll.js";
import { Shortcuts } from "./shortcuts.js";

const LOOK_EVERY_MS = 5000;
const LIST_EVERY_MS = 15_000;
const ADDRESS = /^#\/c\/([A-Za-z0-9_-]{1,64})$/;

const tabs = new BroadcastChannel("smolsessions");
const connection = new Connection();
const keys = new Keys(() => {
  agents.load();
  list.retry();
});
const api = new Api(keys);
const composer = new Composer({
  send: (text, files, options) => conversation.send(text, files, options),
  stop: () => conversation.stop(),
});
const about = (agent) => showAgent(api, agent);
const agents = new Agents(api, connection, { about, example: (text) => {
  composer.text = text;
  byId("message").focus();
} });
const list = new List(api, connection, {
  deleted: (id) => {
    if (id === conversation.id || id === conversation.root) location.hash = "#/";
  },
  gone: (id) => tabs.postMessage(id),
  changed: (view) => {
    tabs.postMessage(view.id);
    if (view.id === conversation.id) conversation.shown(view);
  },
});
function open(id) {
  location.hash = `#/c/${id}`;
  list.mark(id);
}

function changed(id) {
  list.touch(id);
  tabs.postMessage(id);
  if (id === conversation.id) conversation.look();
}

const pictures = new Pictures(api, connection);
const inspector = new Inspector({ api, connection, pictures, conversation: () => conversation, opened: open, changed });
const conversation = new Conversation({
  api,
  connection,
  composer,
  heading: new Heading({ rename: (title) => conversation.rename(title), about }),
  pictures,
  place: new Place(byId("scroll"), byId("content"), byId("latest")),
  shown: (view) => {
    if (view) {
      list.show(view);
      list.mark(view.id, rootOf(view));
    }
    inspector.show(view);
  },
  inspect: (number) => inspector.prompt(number),
  chosenAgent: () => agents.chosen,
  began: open,
  changed: (id) => {
    list.touch(id);
    tabs.postMessage(id);
  },
});

let byKey = false; // the next address comes from a key, so that the next key is no text

function route() {
  const id = ADDRESS.exec(location.hash)?.[1] ?? null;
  if (id && id === conversation.id) return;
  if (id) conversation.open(id);
  else {
    conversation.begin();
    agents.load();
  }
  list.mark(id);
  menu(false);
  if (!byKey) composer.focus();
  byKey = false;
}

// On a narrow screen the list is a drawer. Only the front part can take the focus.
const narrow = matchMedia("(max-width: 760px)");

function menu(open) {
  const drawn = narrow.matches && open;
  document.body.classList.toggle("menu", drawn);
  byId("side").inert = narrow.matches && !drawn;
  byId("main").inert = drawn;
  byId("menu").setAttribute("aria-expanded", String(drawn));
  show(byId("veil"), drawn);
  if (drawn) byId("side-close").focus();
}

function closeMenu() {
  if (!document.body.classList.contains("menu")) return;
  menu(false);
  byId("menu").focus();
}

byId("menu").addEventListener("click", () => menu(true));
byId("side-close").addEventListener("click", closeMenu);
byId("veil").addEventListener("click", closeMenu);
narrow.addEventListener("change", () => menu(false));

const TAKES_ESCAPE = "dialog, option, #inspector, input, textarea:not(#message), [role=menu], [popover]";

/** Escape closes what is open, and else stops the running turn. A turn that waits for a person goes on. */
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || event.target.closest(TAKES_ESCAPE)) return;
  if (document.body.classList.contains("menu")) closeMenu();
  else if (document.querySelector('.turn[data-status="running"]') && !byId("stop").hidden) byId("stop").click();
});

function begin() {
  if (location.hash === "#/" || !location.hash) route();
  location.hash = "#/";
}

function beside(by) {
  const address = list.beside(by);
  if (!address || address === location.hash) return;
  byKey = true;
  document.activeElement?.blur();
  location.hash = address;
}

byId("new").addEventListener("click", begin);
byId("agent-details-close").addEventListener("click", () => byId("agent-details").close());
new Shortcuts([
  ["n", "Begin a new conversation", begin],
  ["/", "Search the conversations", () => {
    if (narrow.matches) menu(true);
    byId("search").focus();
  }],
  ["j", "Open the next conversation of the list", () => beside(1)],
  ["k", "Open the previous one", () => beside(-1)],
  ["c", "Write a message", () => byId("message").focus()],
  ["r", "Rename the conversation", () => byId("rename").hidden || byId("rename").click()],
  ["Esc", "Stop the running turn"], // it works in the message field, too
  ["o", "Open or close the steps of the last turn", () => document.querySelector(".turn:last-child .work > summary")?.click()],
  ["f", "Open or close the files", () => inspector.files()],
  ["i", "Open or close the inspector", () => inspector.toggle()],
  ["e", "Go to the end", () => byId("latest").hidden || byId("latest").click()],
]);

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the open conversation
  byId("message").focus();
});

document.addEventListener("submit", (event) => event.preventDefault()); // no form leaves the page
window.addEventListener("hashchange", route);
tabs.addEventListener("message", ({ data: id }) => {
  list.touch(id);
  if (id === conversation.id) conversation.look();
});
const whenSeen = (act) => () => document.visibilityState === "visible" && act();
document.addEventListener("visibilitychange", whenSeen(() => conversation.look()));
setInterval(whenSeen(() => conversation.look()), LOOK_EVERY_MS);
setInterval(whenSeen(() => list.look()), LIST_EVERY_MS);

menu(false);
route();
list.load();
