// <dialog> by attributes: data-open-dialog="id" opens, data-close closes; focus goes back to what opened it (the browser does that).
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open-dialog]");
  if (opener && opener.getAttribute("aria-disabled") !== "true") document.getElementById(opener.dataset.openDialog)?.showModal();
  if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  if (event.target.matches("dialog") && event.target.open) event.target.close(); // the backdrop
});
for (const dialog of document.querySelectorAll("dialog[data-show]")) dialog.showModal();
