// A switcher, an offered filter or the menu closes on Esc and on a click elsewhere.
const kinds = "details.switcher, details.chip-offer, details.menu";

function closeAll(but) {
  for (const box of document.querySelectorAll(kinds)) {
    if (box.open && !(but && box.contains(but))) box.open = false;
  }
}

document.addEventListener("click", (event) => closeAll(event.target));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.activeElement && document.activeElement.closest(kinds);
  closeAll(null);
  if (open) open.querySelector("summary").focus();
});
