// The list of what was refused, or the heading of a page that asks to confirm, gets the focus.
const target = document.querySelector("[data-autofocus]");
if (target) target.focus();
