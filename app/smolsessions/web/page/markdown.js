// Markdown as elements. The text comes from models and tools: HTML in it stays text, and the result is sanitised once more.

import { framed } from "./code.js";
import highlighter from "./vendor/highlight.js";
import MarkdownIt from "./vendor/markdown-it.js";
import DOMPurify from "./vendor/purify.js";

const MOST_CHARS = 200_000; // a longer text is shown as it is
const MOST_CODE_CHARS = 20_000; // code after them has no colours: 60,000 characters of hostile C# take 20 s
const MOST_OPEN_CHARS = 10_000; // the same while it is being written, as it is coloured again for each piece
const LONG_LINE = /^.{500}/m; // code from there on has no colours: in Java, one word of 20,000 characters takes 10 s
const TOO_DEEP = /^[ \t]*(?:(?:>[ \t]*){30}|(?:[*+-][ \t]+){30})|(?:\[[^[\]\n]?){300}/m;
const LINK = /^(?:https?:\/\/|mailto:)/i;
const MARK = /<\/?end_(?:plan|code|action)>|<\|[a-z_]{1,20}\|>/y; // marks by which a model ends its text
const MATH = /\$\$[^$]+?\$\$|\$(?=\S)[^$\n]*?[^\s$\\]\$(?!\d)|\\\([^]{1,400}?\\\)|\\\[[^]{1,400}?\\\]/y;
const MATH_BLOCK = new Map([["$$", "$$"], ["\\[", "\\]"]]);
const STRONG = /\p{L}/u;
const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const TASK = /^\[([ xX])\][ \t]/;
const CLEAN = {
  ALLOWED_TAGS: ["p", "br", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "strong", "em", "s", "hr", "a",
    "div", "table", "thead", "tbody", "tr", "th", "td", "span"],
  ALLOWED_ATTR: ["href", "target", "rel", "class", "start", "align", "dir", "tabindex", "title", "data-language"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = (address) => LINK.test(address);
markdown.inline.ruler.before("escape", "math", mathIn);
markdown.inline.ruler.before("autolink", "mark", markIn);
markdown.block.ruler.before("fence", "math_block", mathBlock, { alt: ["paragraph", "blockquote", "list"] });
markdown.core.ruler.push("shape", shape);

const { rules } = markdown.renderer;
const escaped = markdown.utils.escapeHtml;
rules.math = (tokens, index) => `<span class="math">${escaped(tokens[index].content)}</span>`;
rules.math_block = (tokens, index) => `<p class="math${tokens[index].meta}" tabindex="0">${escaped(tokens[index].content)}</p>`;
rules.code_block = (tokens, index) => code(tokens[index].content, "", false);
rules.fence = (tokens, index, _options, { open }) => code(tokens[index].content, tokens[index].info, open && index === tokens.length - 1);
rules.image = (tokens, index) => { // no image of another host is loaded
  const label = escaped(tokens[index].content || "Image");
  const address = tokens[index].attrGet("src");
  return address ? `<a class="elsewhere" href="${escaped(address)}" target="_blank" rel="noopener noreferrer">${label}</a>` : label;
};
rules.table_open = () => '<div class="table" tabindex="0"><table>';
rules.table_close = () => "</table></div>";

/**
 * Split a text into its blocks. `blocks` are `{start, tokens}`, with the offset at which a block begins. `references` is true
 * if the text defines addresses of links. Null: the text is too long or too deep for Markdown.
 */
export function parsed(text) {
  if (text.length > MOST_CHARS || TOO_DEEP.test(text)) return null;
  const environment = {};
  const blocks = [];
  const starts = startsOf(text);
  let depth = 0;
  for (const token of markdown.parse(text, environment)) {
    if (depth === 0 && token.nesting >= 0) blocks.push({ start: starts[token.map?.[0] ?? 0], tokens: [] });
    blocks.at(-1).tokens.push(token);
    depth += token.nesting;
  }
  return { blocks, references: Boolean(environment.references) };
}

/** Return a text that is code as its one block, as `parsed` does. */
export function parsedCode(code, language) {
  return code.length > MOST_CHARS ? null : { blocks: [{ start: 0, code, language }], references: false };
}

/** Return a fragment of a block. An `open` block may get more text: only the first part of its code is coloured. */
export function drawn({ tokens, code: source, language }, open = false) {
  const html = tokens ? markdown.renderer.render(tokens, markdown.options, { open }) : code(source, language, open);
  return framed(DOMPurify.sanitize(html, CLEAN));
}

function code(source, info, open) {
  const language = info.trim().split(/\s+/)[0].slice(0, 40);
  const known = highlighter.getLanguage(language.toLowerCase());
  const long = source.search(LONG_LINE);
  const most = Math.min(open ? MOST_OPEN_CHARS : MOST_CODE_CHARS, long < 0 ? Infinity : long);
  let cut = 0; // the end of the part with colours
  if (known) cut = source.length > most ? source.lastIndexOf("\n", most) + 1 : source.length;
  const colours = cut && highlighter.highlight(source.slice(0, cut), { language: language.toLowerCase(), ignoreIllegals: true }).value;
  const name = escaped(known?.name ?? language);
  return `<pre tabindex="0" data-language="${name}"><code>${colours || ""}${escaped(source.slice(cut))}</code></pre>`;
}

function startsOf(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}

function mathIn(state, silent) {
  const first = state.src[state.pos];
  if (first !== "$" && first !== "\\") return false;
  MATH.lastIndex = state.pos;
  const [found] = MATH.exec(state.src) ?? [];
  if (!found) return false;
  if (!silent) state.push("math", "", 0).content = found;
  state.pos += found.length;
  return true;
}

function markIn(state) {
  if (state.src[state.pos] !== "<") return false;
  MARK.lastIndex = state.pos;
  const [found] = MARK.exec(state.src) ?? [];
  if (!found) return false;
  state.pos += found.length;
  return true;
}

function mathBlock(state, startLine, endLine, silent) {
  const lineAt = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trimEnd();
  const end = MATH_BLOCK.get(lineAt(startLine));
  if (!end) return false;
  let line = startLine + 1;
  while (line < endLine && lineAt(line) !== end) line += 1;
  if (silent) return true;
  const next = Math.min(line + 1, endLine); // without an end it is as long as the text
  const token = state.push("math_block", "", 0);
  token.content = state.getLines(startLine, next, state.blkIndent, false);
  token.meta = line < endLine ? "" : " open";
  token.map = [startLine, next];
  state.line = next;
  return true;
}

/**
 * Give blocks from right to left their direction, links a tab of their own, tasks their boxes, and headings a place below the
 * page's own. `dir=auto` would let a browser look at the whole block for each new line.
 */
function shape(state) {
  let item = null;
  let undecided = []; // blocks whose first letter comes
  for (const token of state.tokens) {
    if (token.type === "heading_open" || token.type === "heading_close") token.tag = `h${Math.min(6, Number(token.tag[1]) + 1)}`;
    if (token.nesting === 1) undecided.push(token);
    const style = token.attrGet("style");
    if (style) token.attrs = [...token.attrs.filter(([name]) => name !== "style"), ["align", style.split(":")[1]]];
    if (token.type === "list_item_open") item = token;
    if (token.type !== "inline") continue;
    if (item) box(item, token);
    item = null;
    const [letter] = STRONG.exec(token.content) ?? [];
    if (letter) {
      if (RIGHT_TO_LEFT.test(letter)) for (const block of undecided) block.attrSet("dir", "rtl");
      undecided = [];
    }
    for (const child of token.children) {
      if (child.type !== "link_open") continue;
      child.attrSet("target", "_blank");
      child.attrSet("rel", "noopener noreferrer");
    }
  }
}

function box(item, inline) {
  const [first] = inline.children;
  const found = first?.type === "text" && TASK.exec(first.content);
  if (!found) return;
  first.content = first.content.slice(found[0].length);
  item.attrSet("class", found[1] === " " ? "task" : "task done");
}
