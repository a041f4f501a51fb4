// Markdown as models write it, into DOM nodes. Text only ever becomes text nodes and attributes set here, so nothing in a reply can
// become markup; links are http, https or mailto. Not here: when to render (app.js).

const SAFE_LINK = /^(https?:\/\/|mailto:)/i;

function el(name, cls, ...children) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  e.append(...children);
  return e;
}

// ---- inline ------------------------------------------------------------------------------------------------------------
const INLINE = [
  [/^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (m) => el("code", "", m[2].trim() || m[2])],
  [/^\\([\\`*_{}[\]()#+\-.!~|<>])/, (m) => m[1]],
  [/^!?\[((?:[^[\]]|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+["'][^"']*["'])?\s*\)/, (m, depth) => link(m[2], inline(m[1], depth + 1), m[0])],
  [/^<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/i, (m) => link(m[1], [m[1]], m[0])],
  [/^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_]/i, (m) => link(m[0], [m[0]], m[0])],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)/, (m, depth) => el("strong", "", ...inline(m[1], depth + 1))],
  [/^__(?=\S)([\s\S]*?\S)__(?![_\w])/, (m, depth) => el("strong", "", ...inline(m[1], depth + 1))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m, depth) => el("del", "", ...inline(m[1], depth + 1))],
  [/^\*(?=[^\s*])([^*]*?[^\s*])\*(?!\*)/, (m, depth) => el("em", "", ...inline(m[1], depth + 1))],
  [/^_(?=[^\s_])([^_]*?[^\s_])_(?![_\w])/, (m, depth) => el("em", "", ...inline(m[1], depth + 1))],
  [/^(?: {2,}|\\)\n/, () => el("br")],
];
const SPECIAL = /[`\\![<*_~]|https?:\/\/| {2,}\n/g;

function link(url, children, source) {
  if (!SAFE_LINK.test(url)) return document.createTextNode(source);
  const a = el("a", "", ...children);
  a.href = url;
  a.target = "_blank";
  a.rel = "noopener noreferrer nofollow";
  return a;
}

// A list of nodes and strings. An underscore inside a word is not emphasis.
export function inline(text, depth = 0) {
  if (depth > 8) return [text];
  const out = [];
  let plain = 0, at = 0;
  for (;;) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) break;
    at = next.index;
    const rest = text.slice(at, at + 4000);
    const inWord = text[at] === "_" && at > 0 && /\w/.test(text[at - 1]);
    const rule = !inWord && INLINE.map(([re, make]) => [rest.match(re), make]).find(([m]) => m);
    if (!rule) {
      at += 1;
      continue;
    }
    if (at > plain) out.push(text.slice(plain, at));
    out.push(rule[1](rule[0], depth));
    at += rule[0][0].length;
    plain = at;
  }
  if (plain < text.length) out.push(text.slice(plain));
  return out;
}

// ---- blocks ------------------------------------------------------------------------------------------------------------
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// Lines into [{kind, lines, …}]; a block's source decides whether it has to be drawn again.
export function blocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const out = [];
  let i = 0;
  const until = (stop) => {
    const from = i;
    while (i < lines.length && !stop(lines[i], i)) i += 1;
    return lines.slice(from, i);
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = line.match(FENCE);
    if (!line.trim()) {
      i += 1;
    } else if (fence) {
      i += 1;
      const end = new RegExp(`^ {0,3}${fence[2][0]}{${fence[2].length},}\\s*$`);
      const body = until((l) => end.test(l));
      i += 1;
      out.push({ kind: "code", language: fence[3], lines: body });
    } else if (HEADING.test(line)) {
      out.push({ kind: "heading", lines: [line] });
      i += 1;
    } else if (RULE.test(line)) {
      out.push({ kind: "rule", lines: [line] });
      i += 1;
    } else if (QUOTE.test(line)) {
      out.push({ kind: "quote", lines: until((l) => !l.trim()) });
    } else if (ITEM.test(line)) {
      out.push({ kind: "list", lines: until((l, n) => listEnds(lines, n, line)) });
    } else if (line.includes("|") && i + 1 < lines.length && TABLE_RULE.test(lines[i + 1]) && lines[i + 1].includes("-")) {
      out.push({ kind: "table", lines: until((l) => !l.trim() || !l.includes("|")) });
    } else {
      const from = i;
      i += 1;
      until((l) => !l.trim() || FENCE.test(l) || HEADING.test(l) || QUOTE.test(l) || RULE.test(l) || ITEM.test(l));
      out.push({ kind: "text", lines: lines.slice(from, i) });
    }
  }
  return out;
}

// A list goes on over items, indented lines and blank lines that are followed by either.
function listEnds(lines, n, first) {
  const line = lines[n];
  if (!line.trim()) {
    const next = lines.slice(n + 1).find((l) => l.trim());
    return next === undefined || !(/^\s{2,}/.test(next) || sameList(next, first));
  }
  if (sameList(line, first) || /^\s{2,}/.test(line)) return false;
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || !lines[n - 1].trim();
}

function sameList(line, first) {
  const a = line.match(ITEM), b = first.match(ITEM);
  return a && /\d/.test(a[2]) === /\d/.test(b[2]);
}

function drawCode(block) {
  const code = el("code", "", block.lines.join("\n"));
  const copy = el("button", "", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code.textContent);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const pre = el("pre", "", code);
  pre.tabIndex = 0; // long lines scroll by keyboard
  return el("div", "code", el("div", "bar", el("span", "", block.language || "text"), copy), pre);
}

function drawList(block, depth) {
  const first = block.lines[0].match(ITEM);
  const list = el(/\d/.test(first[2]) ? "ol" : "ul");
  if (list.tagName === "OL" && parseInt(first[2], 10) !== 1) list.start = parseInt(first[2], 10);
  const items = [];
  for (const line of block.lines) {
    const m = line.match(ITEM);
    if (m && m[1].length < first[1].length + 2) items.push({ lines: [line.slice(m[0].length)] });
    else items[items.length - 1].lines.push(line);
  }
  for (const item of items) {
    const indent = Math.min(...item.lines.slice(1).filter((l) => l.trim()).map((l) => l.match(/^ */)[0].length), 8);
    const text = item.lines.map((l, n) => (n ? l.slice(Math.min(indent, l.match(/^ */)[0].length)) : l)).join("\n");
    const li = el("li");
    const inner = blocks(text);
    if (inner.length && inner[0].kind === "text") li.append(...inline(inner.shift().lines.join("\n")));
    li.append(...inner.map((b) => draw(b, depth + 1)));
    list.append(li);
  }
  return list;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.trim().replace(/\\\|/g, "|"));
}

function drawTable(block) {
  const row = (line, name) => el("tr", "", ...cells(line).map((c) => el(name, "", ...inline(c))));
  return el("div", "table", el("table", "", el("thead", "", row(block.lines[0], "th")), el("tbody", "", ...block.lines.slice(2).map((l) => row(l, "td")))));
}

function draw(block, depth = 0) {
  const text = block.lines.join("\n");
  if (depth > 8) return el("p", "", text);
  switch (block.kind) {
    case "code": return drawCode(block);
    case "heading": return el(`h${text.match(HEADING)[1].length}`, "", ...inline(text.match(HEADING)[2]));
    case "rule": return el("hr");
    case "quote": return el("blockquote", "", ...blocks(block.lines.map((l) => l.replace(QUOTE, "")).join("\n")).map((b) => draw(b, depth + 1)));
    case "list": return drawList(block, depth);
    case "table": return drawTable(block);
    default: return el("p", "", ...inline(text));
  }
}

// Draws text into box. Blocks whose source is unchanged keep their nodes, so a growing reply costs one block a frame and a
// selection in the finished part survives.
export function render(box, text) {
  const next = blocks(text);
  const before = box.drawn || [];
  let same = 0;
  const key = (b) => b.kind + (b.language || "") + "\n" + b.lines.join("\n");
  while (same < next.length && same < before.length && before[same] === key(next[same])) same += 1;
  while (box.childNodes.length > same) box.lastChild.remove();
  for (let n = same; n < next.length; n += 1) box.append(draw(next[n]));
  box.drawn = next.map(key);
}
