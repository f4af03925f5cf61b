// The page: the server's recordings, their list, and the open one.
import { connection, persistently } from "./connection.js";
import { h } from "./dom.js";
import { Finder } from "./find.js";
import { ask, askJson, key, Refusal, setKey } from "./http.js";
import { Live } from "./live.js";
import { List, busy, nameOf } from "./list.js";
import { menu } from "./menu.js";
import { Notices } from "./notices.js";
import { FILES, Open } from "./open.js";
import { Outbox } from "./outbox.js";
import { Recordings } from "./recordings.js";
import { ServerJobs } from "./server.js";
import { Settings } from "./settings.js";
import { KINDS, save } from "./viewer.js";

const element = (id) => document.getElementById(id);
const notices = new Notices(element("notices"));
const settings = new Settings();
const store = new ServerJobs();

let recordings = null;
const early = []; // [files, batch] that were given before the server has answered
let open = null;
let served = ""; // the name of its model
let starting = null; // aborts a beginning when another begins

const act = {
  async cancel(job) {
    if (job.state === "sending") return job.stop.abort();
    await told(job, async () => recordings.put(await store.cancel(job.id)));
  },
  async remove(job) {
    if (!confirm(`Delete ${nameOf(job)}, its audio and its text, on the server?`)) return;
    await told(job, async () => {
      await store.remove(job.id);
      if (open?.job.id === job.id) leave();
      recordings.remove(job.id);
    });
  },
  async retry(job) {
    await told(job, async () => recordings.put(await store.retry(job.id)));
  },
  remember: (pairs) => settings.remember(pairs),
  async rename(job) {
    const name = prompt("Name of this recording", nameOf(job))?.trim();
    if (!name || name === nameOf(job)) return;
    await told(job, async () => {
      const named = await store.rename(job.id, name);
      recordings.put(named);
      open?.call(named);
    });
  },
};

// The transcripts of all recordings, in a zip.
const all = menu("Download all", FILES.map((format) => [KINDS[format], async () => {
  try {
    save(await store.archive(format), "recordings.zip");
  } catch (error) {
    fail(error);
  }
}]));

const finder = new Finder(store, fail);
const list = new List(element("list"), element("none"), act);
const outbox = new Outbox(store, {
  onchange: show,
  onjob(job, one) {
    recordings.put(job);
    notices.drop(subjectOf(one));
    if (one.batch.from === location.hash) location.hash = encodeURIComponent(job.id);
    one.batch.from = null; // the first one is opened, unless the user has navigated
  },
  onerror: (error, one) => fail(error, one),
});

// -- connection -------------------------------------------------------------------------------------

async function begin() {
  starting?.abort();
  starting = new AbortController();
  const { signal } = starting;
  try {
    const models = await persistently(() => askJson("v1/models", { signal }), { signal });
    await persistently(() => store.list(1), { signal });
    served = models.data[0].id;
    await limit(signal);
    tellReady(signal);
    recordings?.close();
    recordings = new Recordings(store, { onchange: refreshed, onerror: (error) => error.needsKey && fail(error) });
    notices.drop("key");
    element("files").disabled = false;
    for (const given of early.splice(0)) add(...given);
    await recordings.refresh();
    await route(true);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 404) notices.tell("jobs", "Jobs are disabled on this server (jobs = false), and this page needs them.");
    else fail(error);
  }
}

async function limit(signal) {
  settings.limit(await persistently(() => askJson(`v1/models/${encodeURI(served)}`, { signal }), { signal }));
}

// Shows the server's name, and what it waits for until it is ready.
async function tellReady(signal) {
  const show = (state, text) => Object.assign(element("server"), { className: `server ${state}`, textContent: text });
  const ontrouble = ({ status, message }) => status && show("busy", `${served}: ${message}`);
  try {
    await persistently(() => ask("ready", { signal }), { signal, ontrouble });
    show("ready", served);
    await limit(signal); // a model's own languages are known once it is loaded
  } catch (error) {
    if (!signal.aborted) fail(error);
  }
}

connection.listeners.push((up) => {
  if (!up) {
    element("server").className = "server gone";
    return tellWaiting();
  }
  notices.tell("connection", "The server answers again.", { kind: "good" });
  if (!recordings) return;
  recordings.refresh();
  tellReady(starting.signal);
});

// What this page does once the server is back.
function tellWaiting() {
  const { length } = outbox.waiting.concat(...early.map(([files]) => files));
  const waiting = [
    length ? `${length} ${length === 1 ? "recording" : "recordings"} to be sent` : "",
    open?.following ? `the text of ${nameOf(open.job)}` : "",
    open?.shown?.saving.dirty ? `corrections of ${nameOf(open.job)} to be saved` : "",
  ].filter(Boolean);
  const text = waiting.length ? `This page retries automatically. Waiting: ${waiting.join("; ")}.` : "This page retries automatically.";
  const action = { name: "Try now", run: () => connection.now() };
  notices.tell("connection", `The server does not answer. ${text}`, { kind: "warning", action });
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
    element("access").hidden = false;
    element("keyform").togglePopover(true);
  } else if (!job) notices.tell("server", error.message);
  // The name of the form's field, or of the header, is of no use to the user.
  else notices.tell(subjectOf(job), `${nameOf(job)}: ${error.message.replace(/^(file|upload_id|Upload-\w+): /, "")}`);
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
  if (recordings) return add(ordered, batch);
  early.push([ordered, batch]);
  if (!connection.up) tellWaiting();
}

function add(files, batch) {
  finder.close(); // they are seen in the list
  outbox.add(files, settings.get(), batch);
}

// Anywhere on the page, because a file dropped outside the zone would replace the page.
function intake() {
  const zone = element("drop");
  const held = (run) => (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    run(event);
  };
  addEventListener("dragover", held(() => zone.classList.add("over")));
  addEventListener("dragleave", (event) => event.relatedTarget || zone.classList.remove("over"));
  addEventListener("drop", held((event) => {
    zone.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  }));
  element("files").addEventListener("change", (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    if (files.length) take(files);
  });
}

// -- the list and the open recording ----------------------------------------------------------------

function show() {
  list.show(outbox.waiting.concat(recordings?.jobs || []), open?.job.id);
  element("older").hidden = !recordings?.more;
  if (!recordings) element("none").hidden = true; // nobody knows
  all.hidden = !recordings?.jobs.some(({ state }) => state === "succeeded");
  element("find").hidden = all.hidden;
  if (!connection.up) tellWaiting();
}

// The open recording may have been retried, here or in another tab, or have ended while this machine slept.
function refreshed() {
  show();
  const now = open && recordings.find(open.job.id);
  if (now && busy(now) !== open.following) route(true);
}

function close() {
  open?.close();
  open = null;
}

function leave() {
  close();
  location.hash = "";
  home();
}

async function route(again = false) {
  if (!recordings) return;
  const id = asked();
  const same = open?.job.id === id;
  if (open && same && !again) return open.goTo(place());
  if (!same && !(await leaves())) {
    location.hash = encodeURIComponent(open.job.id);
    return;
  }
  if (asked() !== id) return; // the user has gone on meanwhile
  const { signal } = starting;
  close();
  document.body.classList.toggle("reading", Boolean(id));
  if (!id) return home();
  try {
    const job = await persistently(() => store.get(id), { signal });
    if (asked() !== id || open) return; // the user has navigated in the meantime
    open = new Open(element("content"), store, job, { heard: (news) => recordings.heard(news), act: { ...act, languages: settings.languages } });
    open.goTo(place());
    show();
    if (!same) {
      open.title.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    await open.run();
  } catch (error) {
    if (asked() !== id || signal.aborted) return;
    if (error.status === 404) home("This server has no such recording: it was deleted, or belongs to another key.");
    else fail(error);
  }
}

// Whether the open recording may be left: its corrections are saved, or given up.
async function leaves() {
  try {
    await open?.shown?.saving.settled();
    return true;
  } catch {
    return confirm(`The corrections of ${nameOf(open.job)} are not saved. Leave it without them?`);
  }
}

// The id in the address; an address that cannot be decoded names nothing.
function asked() {
  const [id] = location.hash.slice(1).split("?");
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

// The place in the address, as a search has found it.
function place() {
  const given = new URLSearchParams(location.hash.split("?")[1]);
  return given.has("at") ? { find: given.get("find") || "", at: Math.min(Number(given.get("at")) || 0, 1e7) } : null;
}

function home(message = "") {
  document.title = "forescribe";
  const text = message || "Drop recordings or videos anywhere on this page, choose files, or record. They are sent to this server only.";
  element("content").replaceChildren(
    h("div", { class: "empty" }, h("h1", {}, message ? "Not here" : "Transcripts with speakers"), h("p", { dir: "auto", role: "status" }, text)),
  );
  show();
}

element("keyform").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(element("key").value.trim());
  element("key").value = "";
  element("keyform").hidePopover();
  element("access").focus();
  begin();
});
element("older").addEventListener("click", () => recordings.older());
addEventListener("hashchange", () => route());
element("access").hidden = !key();
element("heading").append(all);
intake();
new Live({ take, settings: () => settings.get(), notices });
home();
begin();
