// Live numbers, countdowns and copying: everything here is an extra, the page works without it.
// Only text and numbers are written, never HTML.

const body = document.body;
const skew = Number(body.dataset.now) - Date.now();
const now = () => Date.now() + skew;

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function span(seconds) {
  let left = Math.floor(Math.abs(seconds));
  const parts = [];
  for (const [size, unit] of UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count || parts.length) parts.push(count ? `${count.toLocaleString("en")} ${unit}` : "");
  }
  return parts.slice(0, 2).filter(Boolean).join(" ") || "0 s";
}

// Relative times count on by the server's clock.
function tick() {
  for (const each of document.querySelectorAll("[data-at]")) {
    const seconds = (Number(each.dataset.at) - now()) / 1000;
    each.textContent = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `in ${span(seconds)}` : `${span(seconds)} ago`;
  }
  // A list that was true when it was written: say what has come due since, and move nothing.
  for (const told of document.querySelectorAll("[data-newer]")) {
    const rows = [...told.closest("section").querySelectorAll("[data-at]")].map((each) => Number(each.dataset.at));
    const since = rows.filter((at) => at > Number(body.dataset.now) && at < now() - 1000).length;
    told.textContent = since === 1 ? "One of these was due since." : `${since} of these were due since.`;
    told.parentElement.hidden = !since;
  }
}
if (!body.dataset.standing) setInterval(tick, 1000);

// Numbers of the stream: each frame names values, each value has its places.
const status = document.getElementById("stream");
let source = null;
let stale = false;
function write(frame) {
  for (const [name, value] of Object.entries(frame)) {
    for (const place of document.querySelectorAll(`[data-live="${CSS.escape(name)}"]`)) {
      if (place.textContent !== String(value)) place.textContent = String(value);
    }
    for (const place of document.querySelectorAll(`[data-live-tone="${CSS.escape(name)}"]`)) place.className = `health ${value}`;
    for (const bar of document.querySelectorAll(`[data-live-value="${CSS.escape(name)}"]`)) bar.value = Number(value);
    // What the value decides is more than a text: the server writes it.
    stale ||= Boolean(document.querySelector(`[data-reload="${CSS.escape(name)}"]:not([data-was="${CSS.escape(value)}"])`));
  }
  renew();
}
// Not from under somebody who types.
function renew() {
  if (stale && !document.activeElement?.matches("input, textarea, select")) location.reload();
}
function say(text) {
  if (status.textContent !== text) status.textContent = text;
}
function open() {
  if (source || !body.dataset.stream || document.hidden || Date.now() < notBefore) return;
  source = new EventSource(body.dataset.stream);
  source.onopen = () => say("live");
  source.onmessage = (message) => {
    const frame = JSON.parse(message.data);
    Object.assign(known, frame);
    write(frame);
  };
  source.onerror = () => {
    say(`stream lost at ${new Date(now()).toISOString().slice(11, 19)} UTC, trying again`);
    if (source && source.readyState === EventSource.CLOSED) close(5000);
  };
}
function close(pause = 0) {
  if (source) source.close();
  source = null;
  notBefore = Date.now() + pause;
}

// All tabs share one stream, because a browser has six connections for one host:
// the oldest tab in sight tells the others what it hears, and when it falls silent another one takes over.
const me = performance.timeOrigin + Math.random();
const known = {};
let notBefore = 0;
if (body.dataset.stream) {
  const tabs = new BroadcastChannel(new URL(body.dataset.stream, location).href);
  const isOpen = () => source?.readyState === EventSource.OPEN;
  tabs.onmessage = ({ data }) => {
    if (isOpen() && me < data.me) return;
    close(3000);
    say("live");
    write(data.known);
  };
  setInterval(renew, 1000);
  setInterval(() => (isOpen() ? tabs.postMessage({ me, known }) : open()), 1000);
}
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", () => close());
addEventListener("pageshow", open);
open();

// Copy, also over plain http where there is no clipboard.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
  });
}

// Select all on the page.
for (const box of document.querySelectorAll("[data-select-all]")) {
  box.hidden = false;
  box.addEventListener("change", () => {
    for (const each of document.querySelectorAll(`input[name="${CSS.escape(box.dataset.selectAll)}"]`)) {
      each.checked = box.checked;
    }
  });
}

// Keys: / searches, g and a letter goes to a screen.
let last = "";
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("find")?.focus();
  } else if (last === "g") {
    for (const link of document.querySelectorAll("nav a")) {
      if (link.textContent.toLowerCase().startsWith(event.key)) { link.click(); break; }
    }
  }
  last = event.key;
});

// A browser whose clock differs is told, because its own times then mislead; a virtual clock is meant to differ.
const drift = document.getElementById("drift");
if (drift && !body.dataset.standing && Math.abs(skew) > 5000) {
  drift.textContent = `Your clock differs from the server's by ${span(skew / 1000)}; times here are the server's.`;
  drift.hidden = false;
}
