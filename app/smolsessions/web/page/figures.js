// Times, counts and arguments in readable form.

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

export function tokens(usage) {
  if (!usage || !(usage.input_tokens || usage.output_tokens)) return "";
  const cached = usage.cached_input_tokens ? ` (${usage.cached_input_tokens.toLocaleString("en")} cached)` : "";
  return `${usage.input_tokens.toLocaleString("en")}${cached} → ${usage.output_tokens.toLocaleString("en")} tokens`;
}

/** An estimate of tokens, without digits that say nothing. */
export function about(number) {
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(number)) - 1);
  return `≈ ${count(Math.round(number / unit) * unit, "token")}`;
}

export function joined(...parts) {
  return parts.filter(Boolean).join(" · ");
}

/** A value in one line, for a summary. CSS cuts it at the end of the line. */
export function brief(value, most = 160) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const line = text.slice(0, 2 * most).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)} …` : line;
}

/** The rules of a memory policy in words. */
export function rulesIn(policy) {
  const words = ({ name, ...more }) => [name.replaceAll("_", " "), ...Object.entries(more).map(([key, value]) => `${key} = ${value}`)];
  return policy.map((rule) => words(rule).join(" ")).join(", then ");
}

export function whole(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "";
}

export function entriesOf(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : null;
}

export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, (now - new Date(time)) / 1000);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 7 * 86_400) return count(Math.floor(seconds / 86_400), "day") + " ago";
  return new Date(time).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}

/** The time until a moment. */
export function ahead(time, now = Date.now()) {
  const seconds = (new Date(time) - now) / 1000;
  if (seconds <= 0) return "now";
  if (seconds < 60) return "in less than a minute";
  if (seconds < 3600) return `in ${Math.round(seconds / 60)} min`;
  if (seconds < 2 * 86_400) return `in ${count(Math.round(seconds / 3600), "hour")}`;
  return `in ${count(Math.round(seconds / 86_400), "day")}`;
}
