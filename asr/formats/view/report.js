// A report: one recording in one file that loads nothing else.
import { modelOf } from "./model.js";
import { viewer } from "./viewer.js";

const report = JSON.parse(document.getElementById("report").textContent);
const whole = ["json", () => new Blob([JSON.stringify(report.transcript)], { type: "application/json" })];
const shown = viewer(modelOf(report.transcript), {
  title: report.title,
  key: report.key,
  src: report.audio,
  note: report.note,
  downloads: [whole],
});
shown.player.onbroken = async () => {
  throw new Error("The recording is not where this page looks for it, or this browser cannot play it.");
};
document.querySelector("main").append(shown.root);
