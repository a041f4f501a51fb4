// The chat page: conversation, settings, keyboard. Markdown is markdown.js, the server is api.js.
import { chat, model } from "./api.js";
import { render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const log = $("log"), input = $("input"), dialog = $("dialog"), options = $("options");

// ---- what is kept ------------------------------------------------------------------------------------------------------
function load(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function save(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    say("The conversation is too long to be kept in this browser.");
  }
}

let turns = load("hearth.turns", []); // {role, content, reasoning?, stats?, error?, stopped?}
let settings = load("hearth.settings", { system: "", temperature: "", max_tokens: "", key: "" });
let running = null; // AbortController of the reply in progress

const say = (text) => ($("status").textContent = text);

// ---- drawing -----------------------------------------------------------------------------------------------------------
function element(name, cls, text) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

function action(text, run) {
  const b = element("button", "", text);
  b.type = "button";
  b.addEventListener("click", () => run(b));
  return b;
}

async function copyText(text, button) {
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function drawUser(turn, box) {
  box.append(element("div", "text", turn.content));
  const meta = element("div", "meta");
  meta.append(action("Edit", () => edit(turn)));
  box.append(meta);
}

function drawReasoning(turn, box) {
  let details = box.querySelector("details.reasoning");
  if (!turn.reasoning) return;
  if (!details) {
    details = element("details", "reasoning");
    details.append(element("summary", ""), element("div", "inner"));
    box.prepend(details);
  }
  details.querySelector("summary").textContent = turn.content ? "Thought about it" : "Thinking…";
  details.querySelector(".inner").textContent = turn.reasoning;
}

function drawMeta(turn, box, live) {
  const meta = box.querySelector(".meta");
  meta.replaceChildren();
  if (live) {
    meta.append(turn.prefill < 1 ? `Reading ${Math.round(turn.prefill * 100)} %` : turn.stats || "");
    return;
  }
  if (turn.content) meta.append(action("Copy", (b) => copyText(turn.content, b)));
  if (turn === turns.at(-1)) meta.append(action("Regenerate", regenerate));
  if (turn.stopped) meta.append(element("span", "", "Stopped"));
  if (turn.length) meta.append(element("span", "", "Cut at the token limit"));
  if (turn.stats) meta.append(element("span", "stats", turn.stats));
}

function drawAssistant(turn, box, live) {
  if (!box.querySelector(".text")) box.append(element("div", "text"), element("div", "meta"));
  drawReasoning(turn, box);
  render(box.querySelector(".text"), turn.content);
  box.classList.toggle("waiting", live);
  box.querySelector(".error")?.remove();
  if (turn.error) box.querySelector(".text").after(element("div", "error", turn.error));
  drawMeta(turn, box, live);
}

function drawTurn(turn, live = false) {
  const box = element("article", `turn ${turn.role}`);
  box.setAttribute("aria-label", turn.role === "user" ? "You" : "Reply");
  if (turn.role === "user") drawUser(turn, box);
  else drawAssistant(turn, box, live);
  log.append(box);
  return box;
}

function drawAll() {
  log.querySelectorAll(".turn").forEach((t) => t.remove());
  turns.forEach((t) => drawTurn(t));
  $("welcome").hidden = turns.length > 0;
  buttons();
  toEnd(true);
}

function buttons() {
  $("send").hidden = !!running;
  $("stop").hidden = !running;
  $("send").disabled = !input.value.trim();
  $("new").disabled = !turns.length && !running;
  log.setAttribute("aria-busy", String(!!running));
}

// ---- scrolling: follow the reply unless the reader has gone up ---------------------------------------------------------
let following = true;
const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 48;
function toEnd(force) {
  if (force) following = true;
  if (following) log.scrollTop = log.scrollHeight;
  $("down").hidden = following;
}
log.addEventListener("scroll", () => {
  following = atEnd();
  $("down").hidden = following;
});
$("down").addEventListener("click", () => toEnd(true));

// ---- replies -----------------------------------------------------------------------------------------------------------
function request() {
  const messages = turns.slice(0, -1).filter((t) => t.content || t.role === "user").map(({ role, content }) => ({ role, content }));
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  const r = { messages };
  if (settings.temperature !== "") r.temperature = Number(settings.temperature);
  if (settings.max_tokens !== "") r.max_tokens = Number(settings.max_tokens);
  return r;
}

function speed(usage, clock) {
  const n = usage?.completion_tokens ?? clock.pieces;
  const seconds = (usage?.timings?.decode_ms || performance.now() - (clock.first || clock.start)) / 1000;
  const wait = clock.first ? ((clock.first - clock.start) / 1000).toFixed(2) + " s to the first" : "";
  return [`${n} token${n === 1 ? "" : "s"}`, n > 1 && seconds > 0 ? `${(n / seconds).toFixed(1)} tok/s` : "", wait].filter(Boolean).join(" · ");
}

async function reply() {
  const turn = { role: "assistant", content: "", reasoning: "", prefill: 1 };
  const clock = { start: performance.now(), first: 0, pieces: 0 };
  turns.push(turn);
  running = new AbortController();
  $("welcome").hidden = true;
  log.querySelectorAll(".turn.assistant").forEach((b, n) => drawMeta(turns.filter((t) => t.role === "assistant")[n], b, false));
  const box = drawTurn(turn, true);
  buttons();
  toEnd(true);
  let frame = 0;
  const redraw = () => {
    frame = 0;
    drawAssistant(turn, box, true);
    toEnd();
  };
  try {
    await chat(request(), settings.key, running.signal, (piece) => {
      if (piece.prefill !== undefined) turn.prefill = piece.prefill;
      if (piece.content || piece.reasoning) {
        clock.first ||= performance.now();
        clock.pieces += 1;
        turn.prefill = 1;
        turn.content += piece.content || "";
        turn.reasoning += piece.reasoning || "";
        turn.stats = speed(null, clock);
      }
      if (piece.finish) turn.length = piece.finish === "length";
      if (piece.usage) turn.stats = speed(piece.usage, clock);
      frame ||= requestAnimationFrame(redraw);
    });
    say("The reply is complete.");
  } catch (e) {
    turn.stopped = e.name === "AbortError";
    if (!turn.stopped) turn.error = e.message || "The connection was lost.";
    say(turn.stopped ? "Stopped." : `The reply failed: ${turn.error}`);
  }
  cancelAnimationFrame(frame);
  delete turn.prefill;
  running = null;
  drawAssistant(turn, box, false);
  save("hearth.turns", turns);
  buttons();
  toEnd();
  showModel();
}

function send() {
  const text = input.value.trim();
  if (!text || running) return;
  turns.push({ role: "user", content: text });
  drawTurn(turns.at(-1));
  input.value = "";
  grow();
  save("hearth.turns", turns);
  reply();
}

function stop() {
  running?.abort();
  input.focus();
}

function regenerate() {
  if (running || turns.at(-1)?.role !== "assistant") return;
  turns.pop();
  drawAll();
  reply();
}

// Takes a message back into the field; it and what followed are gone when it is sent again.
function edit(turn) {
  if (running) return;
  turns = turns.slice(0, turns.indexOf(turn));
  save("hearth.turns", turns);
  drawAll();
  input.value = turn.content;
  grow();
  input.focus();
}

function clear() {
  running?.abort();
  turns = [];
  save("hearth.turns", turns);
  drawAll();
  say("New chat.");
  input.focus();
}

// ---- settings ----------------------------------------------------------------------------------------------------------
function openSettings() {
  for (const [name, value] of Object.entries(settings)) options.elements[name].value = value;
  dialog.returnValue = "";
  dialog.showModal();
}

dialog.addEventListener("close", () => {
  if (dialog.returnValue !== "save") return;
  settings = Object.fromEntries(["system", "temperature", "max_tokens", "key"].map((n) => [n, options.elements[n].value]));
  save("hearth.settings", settings);
  showModel();
});
$("cancel").addEventListener("click", () => dialog.close());

async function showModel() {
  const label = $("model");
  try {
    const m = await model(settings.key);
    label.textContent = m.id;
    label.title = [m.family, m.quantization, `${m.context_window} tokens of context`].filter(Boolean).join(" · ");
    label.classList.remove("off");
  } catch (e) {
    label.textContent = e.message || "no connection";
    label.classList.add("off");
    setTimeout(showModel, 3000);
  }
}

// ---- keys and buttons --------------------------------------------------------------------------------------------------
function grow() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  buttons();
}

$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  send();
});
input.addEventListener("input", grow);
input.addEventListener("keydown", (e) => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing) return; // composing: Enter picks a character
  e.preventDefault();
  send();
});
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && running && !dialog.open) stop();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", clear);
$("settings").addEventListener("click", openSettings);

drawAll();
showModel();
