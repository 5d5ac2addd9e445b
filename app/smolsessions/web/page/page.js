// The start of the page: creates its parts and follows the address, which names the open conversation.

import { Agents } from "./agents.js";
import { Api } from "./api.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { byId, show } from "./dom.js";
import { Keys } from "./keys.js";
import { List } from "./list.js";
import { Pictures } from "./pictures.js";
import { Place } from "./scroll.js";

const LOOK_EVERY_MS = 10_000;
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
const agents = new Agents(api, connection, (text) => {
  composer.text = text;
  byId("message").focus();
});
const list = new List(api, connection, (id) => {
  tabs.postMessage(id);
  if (id === conversation.id) location.hash = "#/";
});
const conversation = new Conversation({
  api,
  connection,
  composer,
  pictures: new Pictures(api, connection),
  place: new Place(byId("scroll"), byId("content"), byId("latest")),
  shown: (view) => list.show(view),
  chosenAgent: () => agents.chosen,
  began: (id) => {
    location.hash = `#/c/${id}`;
    list.mark(id);
  },
  changed: (id) => {
    list.touch(id);
    tabs.postMessage(id);
  },
});

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
  composer.focus();
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
document.addEventListener("keydown", (event) => event.key === "Escape" && closeMenu());
byId("new").addEventListener("click", () => {
  if (location.hash === "#/" || !location.hash) route();
  location.hash = "#/";
});

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
const look = () => document.visibilityState === "visible" && conversation.look();
document.addEventListener("visibilitychange", look);
setInterval(look, LOOK_EVERY_MS);

menu(false);
route();
list.load();
