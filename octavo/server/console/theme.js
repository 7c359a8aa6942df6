/** Runs before the page is drawn: the theme that was chosen, if one was. */

try {
  const chosen = localStorage.getItem("octavo.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // A browser without storage follows the system.
}
