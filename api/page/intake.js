// Adding recordings: drop and choose (live.js records).

const element = (id) => document.getElementById(id);

const holdsFiles = (event) => [...event.dataTransfer.types].includes("Files");

// `take(files)` receives the files.
export function intake(take) {
  const zone = element("drop");
  // Anywhere on the page, because a file dropped outside the zone would replace the page.
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    zone.classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || zone.classList.remove("over"));
  addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
  element("files").addEventListener("change", (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    if (files.length) take(files);
  });
}
