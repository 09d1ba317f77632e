// Say it once, politely, when the stamp turns late, lost or fresh again; nothing else is announced.
const announcer = document.getElementById("announcer");
const words = { fresh: "The figures are up to date again.", late: "The figures are late.", lost: "The cluster has not reported.", none: "" };
let known = document.getElementById("stamp")?.dataset.state;

document.addEventListener("htmx:afterSettle", () => {
  const now = document.getElementById("stamp")?.dataset.state;
  if (!announcer || !now || now === known) return;
  known = now;
  announcer.textContent = words[now] ?? "";
});
