// The steps of a turn on record.

/** The steps of a turn, found from the nearer end of the record. */
export async function stepsOf(ask, number) {
  const found = [];
  let cursor = null;
  do {
    const page = await ask(`/steps?limit=100&archived=true&order=desc${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    found.unshift(...page.items.filter(({ turn }) => turn === number).reverse());
    cursor = page.items.at(-1)?.turn < number ? null : page.next_cursor;
  } while (cursor);
  return found.filter(({ type }) => type === "action" || type === "planning");
}
