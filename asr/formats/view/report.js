// A report: one recording in one file that loads nothing else. Corrections stay in this browser.
import { LocalKeeper } from "./saving.js";
import { Viewer } from "./viewer.js";

const report = JSON.parse(document.getElementById("report").textContent);
const keeper = new LocalKeeper(report.key);
const shown = (kept) => {
  const downloads = ["docx", "md", "txt", "srt", "vtt", "json"].map((name) => [name, () => new Blob([viewer.file(name)], { type: "text/plain" })]);
  const about = { title: report.title, keeper, kept, src: report.audio, note: report.note, downloads };
  const viewer = new Viewer(report.transcript, about);
  viewer.player.onbroken = async () => {
    throw new Error("The recording is not where this page looks for it, or this browser cannot play it.");
  };
  document.querySelector("main").append(viewer.root);
};

const kept = await keeper.load();
try {
  shown(kept);
} catch (error) {
  if (!(error instanceof TypeError)) throw error;
  shown(null); // kept of another transcript
}
