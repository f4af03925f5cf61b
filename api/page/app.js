// The page: a store of recordings (on the server or in this tab), their list, and the open recording.
import { connection, pause, persistently } from "./connection.js";
import { calmly, h } from "./dom.js";
import { ask, askJson, key, Refusal, setKey } from "./http.js";
import { intake } from "./intake.js";
import { Live } from "./live.js";
import { List, busy, nameOf } from "./list.js";
import { closing } from "./menu.js";
import { Notices } from "./notices.js";
import { Open } from "./open.js";
import { Outbox } from "./outbox.js";
import { Recordings } from "./recordings.js";
import { forgetCorrections } from "./saving.js";
import { ServerJobs } from "./server.js";
import { Settings } from "./settings.js";
import { TabJobs } from "./tab.js";

const READY_MS = 3000;

const element = (id) => document.getElementById(id);
const notices = new Notices(element("notices"));
const settings = new Settings();

let model = null; // the server's, as /v1/models has it
let recordings = null; // of the current store
let open = null;
let starting = null; // aborts the search for a store when another begins
const found = []; // callers that wait for the store

const act = {
  async cancel(job) {
    if (job.state === "sending") return job.stop.abort();
    await told(job, async () => recordings.put(await store().cancel(job.id)));
  },
  async remove(job) {
    if (!confirm(`Delete ${nameOf(job)}${store().remembered ? ", its audio and its text, on the server" : ""}?`)) return;
    await told(job, async () => {
      await store().remove(job.id);
      forgetCorrections(job.id);
      if (open?.job.id === job.id) {
        close();
        location.hash = "";
        home();
      }
      recordings.remove(job.id);
    });
  },
  async retry(job) {
    await told(job, async () => recordings.put(await store().retry(job.id)));
  },
  async diarize(job, speakers, corrected) {
    if (corrected && !confirm("Finding speakers again discards the corrections of this transcript.")) return;
    await told(job, async () => {
      if (corrected) await store().dropCorrections(job.id);
      recordings.put(await store().diarize(job.id, speakers));
    });
  },
};

const list = new List(element("list"), element("none"), act);
const outbox = new Outbox({
  onchange: show,
  onjob(job, one) {
    recordings.put(job);
    notices.drop(subjectOf(one));
    if (one.batch.from === location.hash) location.hash = encodeURIComponent(job.id);
    one.batch.from = null; // the first one is opened, unless the user has navigated
  },
  onerror: (error, one) => fail(error, one),
});

const store = () => recordings?.store;

// -- connection -------------------------------------------------------------------------------------

async function begin() {
  starting?.abort();
  starting = new AbortController();
  const { signal } = starting;
  try {
    model = await persistently(() => identify(signal), { signal });
    const kept = await persistently(() => chosen(signal), { signal });
    tellReady(signal);
    recordings?.close();
    recordings = new Recordings(kept, { onchange: refreshed, onerror: (error) => error.needsKey && fail(error) });
    settings.limit(kept.remembered, model.speakers);
    notices.drop("key");
    for (const tell of found.splice(0)) tell(kept);
    await recordings.refresh();
    await route(true);
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

async function identify(signal) {
  const models = await askJson("v1/models", { signal });
  return models.data[0] || { id: "", speakers: false };
}

// The server's jobs if they are enabled; otherwise this tab, with a notice.
async function chosen(signal) {
  try {
    await ask("v1/jobs?limit=1", { signal });
    notices.drop("jobs");
    return new ServerJobs();
  } catch (error) {
    if (error.status !== 404) throw error;
    notices.tell("jobs", "Jobs are disabled on this server: transcripts are kept in this tab only.", { kind: "note" });
    return store() instanceof TabJobs ? store() : new TabJobs(model.id);
  }
}

// Show the server's name, and its state until it is ready.
async function tellReady(signal) {
  const say = (state, text) => {
    element("server").textContent = text;
    element("server").className = `server ${state}`;
  };
  while (!signal.aborted) {
    try {
      await ask("ready", { signal });
      return say("ready", model.id);
    } catch (error) {
      if (signal.aborted) return;
      say("busy", error.status === 503 ? `${model.id}: ${error.message}` : model.id);
    }
    await pause(READY_MS, signal).catch(() => {});
  }
}

connection.listeners.push((up) => {
  if (!up) {
    element("server").className = "server gone";
    tellWaiting();
    return;
  }
  notices.tell("connection", "The server answers again.", { kind: "good" });
  if (!recordings) return;
  recordings.refresh();
  tellReady(starting.signal);
});

// What this page does once the server is back.
function tellWaiting() {
  const { length } = outbox.waiting;
  const waiting = [
    length ? `${length} ${length === 1 ? "recording" : "recordings"} to be sent` : "",
    open?.following ? `the text of ${nameOf(open.job)}` : "",
    open?.shown?.saving.dirty ? `corrections of ${nameOf(open.job)} to be saved` : "",
  ].filter(Boolean);
  const text = waiting.length ? `This page retries automatically. Waiting: ${waiting.join("; ")}.` : "This page retries automatically.";
  notices.tell("connection", `The server does not answer. ${text}`, {
    kind: "warning",
    action: { name: "Try now", run: () => connection.now() },
  });
}

// -- errors ----------------------------------------------------------------------------------

function subjectOf(job) {
  return `file ${nameOf(job)}`;
}

// `job`: the recording concerned, if any. A lost connection has a notice of its own.
function fail(error, job = null) {
  if (!(error instanceof Refusal)) throw error;
  if (error.status === 0 && !job) return;
  if (error.needsKey) {
    recordings?.close(); // no requests until there is another key
    notices.tell("key", key() ? "The server does not know this key." : "This server requires an API key.");
    element("access").open = true;
    element("key").focus();
    return;
  }
  if (!job) return notices.tell("server", error.message);
  // The name of the form field is of no use to the user.
  notices.tell(subjectOf(job), `${nameOf(job)}: ${error.message.replace(/^file: /, "")}`);
}

async function told(job, work) {
  try {
    await work();
    notices.drop(subjectOf(job));
  } catch (error) {
    fail(error, job);
  }
}

// -- new recordings ------------------------------------------------------------------------------------

// In the order of their names, in which the list shows them.
function take(files) {
  const batch = { from: location.hash };
  const ordered = [...files].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  const options = settings.get();
  outbox.add(ordered, options, batch, async () => {
    const kept = store() || (await new Promise((resolve) => found.push(resolve)));
    options.diarize ??= settings.get().diarize;
    return kept;
  });
}

// -- the list and the open recording ----------------------------------------------------------------

function show() {
  list.show(outbox.waiting.concat(recordings?.jobs || []), open?.job.id);
  element("older").hidden = !recordings?.more;
  if (!connection.up) tellWaiting();
}

// The open recording may have been retried or deleted, here or in another tab.
function refreshed() {
  show();
  if (!open || open.following) return;
  const now = recordings.find(open.job.id);
  if (!now) gone(open);
  else if (busy(now)) route(true);
}

// It is not in the list: deleted, or older than the listed ones.
async function gone(one) {
  try {
    await store().get(one.job.id);
  } catch (error) {
    if (error.status !== 404 || open !== one) return;
    forgetCorrections(one.job.id);
    close();
    home(`${nameOf(one.job)} was deleted, in another tab or by the server.`);
  }
}

function close() {
  open?.close();
  open = null;
}

async function route(again = false) {
  if (!recordings) return;
  const id = asked();
  if (open && open.job.id === id && !again) return;
  const same = open?.job.id === id;
  if (!same && !leaves()) {
    location.hash = encodeURIComponent(open.job.id);
    return;
  }
  const { signal } = starting;
  close();
  document.body.classList.toggle("reading", Boolean(id));
  if (!id) return home();
  try {
    const job = await persistently(() => store().get(id), { signal });
    if (asked() !== id || open) return; // the user has navigated in the meantime
    document.title = `${nameOf(job)} · forescribe`;
    const one = new Open(element("content"), store(), job, { heard: (news) => recordings.heard(news), act, settings });
    open = one;
    show();
    if (!same) {
      open.title.focus({ preventScroll: true });
      scrollTo({ top: 0, behavior: calmly() });
    }
    await open.run();
    if (open === one && one.lost) gone(one);
  } catch (error) {
    if (asked() !== id || signal.aborted) return;
    if (error.status === 404) home(error.message);
    else fail(error);
  }
}

// Whether the open recording may be left: its corrections are saved, or are being saved, or given up.
function leaves() {
  const saving = open?.shown?.saving;
  if (!saving?.dirty || !(saving.stuck || !connection.up)) return true;
  return confirm(`The corrections of ${nameOf(open.job)} are not saved. Leave it without them?`);
}

// The id in the address; an address that cannot be decoded names nothing.
function asked() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return location.hash.slice(1);
  }
}

const STEPS = [
  ["Drop", "recordings or videos anywhere on this page, choose files, or record. Several files are processed in order."],
  ["Watch", "the text while it is transcribed. You can close the page: the server continues."],
  ["Read and hear", "the text by speaker: click a word to hear it, search, and rename speakers."],
  ["Download", "the transcript as text, subtitles or data."],
];

function home(message = "") {
  document.title = "forescribe";
  document.body.classList.toggle("reading", Boolean(message));
  const steps = STEPS.map(([what, how]) => h("li", {}, h("b", {}, what), ` ${how}`));
  element("content").replaceChildren(
    message ? h("a", { class: "back", href: "#" }, "All recordings") : "",
    h(
      "div",
      { class: "empty" },
      h("h1", {}, message ? "Not here" : "Transcripts with speakers"),
      message ? h("p", { dir: "auto", role: "status" }, message) : h("ol", { class: "steps" }, steps),
      message ? null : h("p", { class: "note" }, "Recordings are sent to this server only."),
    ),
  );
  show();
}

element("keyform").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(element("key").value.trim());
  element("key").value = "";
  element("access").open = false;
  element("access").querySelector("summary").focus();
  begin();
});
element("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the open recording
  const main = element("content");
  (main.checkVisibility?.() === false ? element("list").querySelector("a") : main)?.focus();
});
element("older").addEventListener("click", () => recordings.older());
addEventListener("hashchange", () => route());
closing(element("access"));
intake(take);
new Live({ take, settings: () => settings.get(), notices });
home();
begin();
