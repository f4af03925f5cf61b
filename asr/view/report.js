// A report: one recording, in one file that asks nobody for anything.
import { modelOf } from "./model.js";
import { viewer } from "./viewer.js";

const report = JSON.parse(document.getElementById("report").textContent);
const whole = ["json", () => new Blob([JSON.stringify(report.transcript)], { type: "application/json" })];
document.querySelector("main").append(
  viewer(modelOf(report.transcript), {
    title: report.title,
    key: report.key,
    src: report.audio,
    note: report.note,
    downloads: [whole],
  }).root,
);
