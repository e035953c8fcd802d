// Swagger UI has a dark look of its own, behind a class on <html>; it follows the system here as every page does.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
