// Replace the numbers of a page in place: every [data-region], every data-refresh seconds.
// A region in use is left alone once; a failed refresh keeps the old numbers and says so.
const body = document.body;
const seconds = Number(body.dataset.refresh || 0);
const main = document.getElementById("main");
const strip = document.getElementById("strip");
let paused = false;
let busy = false;
let forced = false;
let failed = 0;
const spared = new Set();

function regions() {
  return [...document.querySelectorAll("[data-region][id]")];
}

function inUse(region) {
  if (region.contains(document.activeElement) && document.activeElement !== document.body) return true;
  if (region.querySelector("details[open], dialog[open]")) return true;
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && region.contains(selection.anchorNode));
}

function rowIds(root) {
  return [...root.querySelectorAll("[data-row][id]")].map((row) => row.id);
}

function reordered(before, after) {
  const stays = new Set(after);
  const kept = new Set(before);
  return before.filter((id) => stays.has(id)).join() !== after.filter((id) => kept.has(id)).join();
}

function say(text, level, action) {
  if (!strip) return;
  strip.dataset.level = level;
  strip.replaceChildren();
  const words = document.createElement("span");
  words.className = "alert-text";
  words.textContent = text;
  strip.append(words);
  if (action) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    button.textContent = action;
    button.addEventListener("click", () => refresh(true));
    strip.append(button);
  }
  strip.hidden = false;
}

function shownAt() {
  const at = document.querySelector("#stamp time");
  return at ? ` Shown as of ${at.textContent}.` : "";
}

function failure(what) {
  failed += 1;
  const text = `Could not refresh: ${what}.${shownAt()}`;
  if (!strip.hidden && strip.textContent.startsWith(text)) return;
  say(text, "bad", "Try again");
}

function refresh(force = false) {
  if (!window.htmx || !main || busy) return;
  const list = regions();
  if (!list.length) return;
  forced = force;
  busy = true;
  main.setAttribute("hx-select-oob", list.map((region) => `#${CSS.escape(region.id)}`).join(","));
  window.htmx
    .ajax("GET", window.location.pathname + window.location.search, { source: main, target: main, swap: "none" })
    .catch(() => {})
    .finally(() => {
      busy = false;
      forced = false;
      main.removeAttribute("hx-select-oob");
    });
}

document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.elt !== main && event.detail.target !== main) return;
  const response = event.detail.xhr;
  if (new URL(response.responseURL).pathname !== window.location.pathname) {
    event.detail.shouldSwap = false;
    failure("you are logged out");
  } else if (response.status === 200) {
    failed = 0;
    if (strip && strip.querySelector("button")) strip.hidden = true;
  }
});

document.addEventListener("htmx:oobBeforeSwap", (event) => {
  const region = event.detail.target;
  if (!region || forced) return;
  if (inUse(region) && !spared.has(region.id)) {
    spared.add(region.id);
    event.detail.shouldSwap = false;
    return;
  }
  if (inUse(region) && region.querySelector("details[open], :focus")) {
    event.detail.shouldSwap = false;
    return;
  }
  spared.delete(region.id);
  const chip = document.querySelector(`[data-order-changed="${region.id}"]`);
  if (chip && region.matches(":hover") && reordered(rowIds(region), rowIds(event.detail.fragment))) {
    event.detail.shouldSwap = false;
    chip.hidden = false;
  } else if (chip) {
    chip.hidden = true;
  }
});

document.addEventListener("htmx:responseError", (event) => failure(`the server answered ${event.detail.xhr.status}`));
document.addEventListener("htmx:sendError", () => failure("the server did not answer"));
document.addEventListener("htmx:timeout", () => failure("the server did not answer"));

function setPaused(value) {
  paused = value;
  body.toggleAttribute("data-paused", paused);
  for (const button of document.querySelectorAll("[data-pause]")) {
    button.textContent = paused ? "Resume the refresh" : "Pause the refresh";
  }
  if (paused) say("The refresh is paused.", "warn", "");
  else if (strip) strip.hidden = true;
}

if (seconds > 0) {
  for (const button of document.querySelectorAll("[data-pause]")) {
    button.hidden = false;
    button.addEventListener("click", () => document.dispatchEvent(new Event("rollcall:pause")));
  }
  for (const chip of document.querySelectorAll("[data-order-changed]")) {
    chip.addEventListener("click", () => {
      chip.hidden = true;
      refresh(true);
    });
  }
  document.addEventListener("rollcall:pause", () => {
    setPaused(!paused);
    if (!paused) refresh();
  });
  document.addEventListener("rollcall:refresh", () => refresh(true));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused) refresh();
  });
  document.addEventListener("rollcall:tick", () => {
    if (!paused && !document.hidden) refresh();
  });
  setInterval(() => document.dispatchEvent(new Event("rollcall:tick")), seconds * 1000);
}
