// JSON whose whole numbers keep all their digits: a person approves and changes exactly the arguments of a call.

/** Parse a text. A number that JavaScript would round becomes a raw number, which `JSON.stringify` writes as it was. */
export function exactly(text) {
  if (!JSON.rawJSON) return JSON.parse(text); // an old browser
  return JSON.parse(text, (_key, value, { source }) => (isRounded(value) ? JSON.rawJSON(source) : value));
}

/** Return the number in a text. Throws an `Error` whose message is a sentence for the user. */
export function numberIn(text, isWhole) {
  const trimmed = text.trim();
  const fits = isWhole ? /^-?(0|[1-9]\d*)$/ : /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
  if (!fits.test(trimmed)) throw new Error(isWhole ? "must be a whole number" : "must be a number, as 12 or 0.5");
  return exactly(trimmed);
}

export function isNumber(value) {
  return typeof value === "number" || Boolean(JSON.isRawJSON?.(value));
}

function isRounded(value) {
  return typeof value === "number" && !Number.isSafeInteger(value) && (Number.isInteger(value) || !Number.isFinite(value));
}
