// A row of the list of conversations: its title, its state, the place of a searched text, and its menu button.

import { isBranch } from "./branches.js";
import { icon, make, show } from "./dom.js";
import { ago } from "./figures.js";

const DAY_MS = 86_400_000;

/** `opens(button)` is called for the row's menu. */
export function makeRow(id, opens) {
  const texts = ["title", "match", "about"].map((name) => make("span", { className: `row-${name}`, dir: "auto" }));
  const button = make("button", { type: "button", className: "quiet round small", title: "Actions", "aria-haspopup": "menu", "aria-expanded": "false" }, icon("more"));
  button.addEventListener("click", () => opens(button));
  return make("li", { className: "row" }, make("a", { href: `#/c/${id}` }, ...texts), button);
}

/** Update a row in place, so that it keeps the focus. */
export function fillRow(row, view, searched) {
  const title = titleOf(view);
  const works = view.status !== "waiting" && (view.running_turn !== null || view.queued_turns > 0);
  row.classList.toggle("waits-for", view.status === "waiting");
  row.classList.toggle("works", works);
  row.querySelector("a").title = title;
  row.querySelector(".row-title").textContent = title;
  row.querySelector(".row-match").replaceChildren(...(view.match ? marked(view.match.excerpt, searched) : []));
  show(row.querySelector(".row-match"), Boolean(view.match));
  const state = works ? "working" : view.status === "waiting" ? "waits for a person" : ago(view.updated_at);
  const origin = isBranch(view) ? "branch · " : view.forked_from ? "fork · " : "";
  const place = view.match ? `turn ${view.match.turn} · ` : "";
  row.querySelector(".row-about").textContent = `${origin}${place}${view.agent} · ${state}`;
  row.querySelector("button").setAttribute("aria-label", `Actions for ${title}`);
}

/** Put a field in the place of a row's title. `done(title)` is called with another title, or with null. */
export function renameRow(row, view, done) {
  const link = row.querySelector("a");
  const field = make("input", { type: "text", className: "row-field", maxLength: 200, value: titleOf(view), dir: "auto", "aria-label": "New title" });
  let isOver = false;
  const end = (keep) => {
    if (isOver) return;
    isOver = true;
    const hasFocus = document.activeElement === field;
    const title = field.value.trim();
    field.remove();
    show(link, true);
    if (hasFocus) link.focus();
    done(keep && title && title !== titleOf(view) ? title : null);
  };
  field.addEventListener("blur", () => end(true));
  field.addEventListener("keydown", (event) => {
    if ((event.key !== "Enter" && event.key !== "Escape") || event.isComposing) return;
    event.stopPropagation();
    end(event.key === "Enter");
  });
  show(link, false);
  link.before(field);
  field.focus();
  field.select();
}

/** The heading under which a conversation stands. */
export function groupOf(view, now = new Date()) {
  if (isPinned(view)) return "Pinned";
  const at = new Date(view.updated_at);
  const days = Math.round((dayOf(now) - dayOf(at)) / DAY_MS); // a day of a change of clocks is an hour longer or shorter
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Previous 7 days";
  return at.toLocaleDateString("en", { month: "long", year: "numeric" });
}

export function isPinned({ metadata }) {
  return metadata?.pinned === true;
}

export function titleOf({ id, title, metadata }) {
  if (title) return title;
  const given = metadata?.title;
  return typeof given === "string" && given.trim() ? given : `Conversation ${id.slice(0, 8)}`;
}

function dayOf(time) {
  return new Date(time.getFullYear(), time.getMonth(), time.getDate());
}

function marked(text, searched) {
  const at = text.toLowerCase().indexOf(searched.toLowerCase());
  if (at < 0) return [text];
  const end = at + searched.length;
  return [text.slice(0, at), make("mark", {}, text.slice(at, end)), text.slice(end)];
}
