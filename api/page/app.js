// The page: a store of recordings (the server's, or this tab's), the list, and the one that is open.
import { calmly, h } from "./dom.js";
import { ask, key, Refusal, setKey } from "./http.js";
import { intake } from "./intake.js";
import { busy, List, nameOf } from "./list.js";
import { forgetNames } from "./names.js";
import { Open } from "./open.js";
import { ServerJobs } from "./server.js";
import { Settings } from "./settings.js";
import { TabJobs } from "./tab.js";

const POLL_MS = 3000;

const element = (id) => document.getElementById(id);
const notice = element("notice");
const settings = new Settings();

let store = null;
let jobs = [];
let sending = []; // recordings on their way up, as jobs
let open = null;
let ready = null; // a promise: the model is loaded

const act = {
  async cancel(job) {
    if (job.state === "sending") return job.stop.abort();
    await told(async () => changed(await store.cancel(job.id)));
  },
  async remove(job) {
    if (!confirm(`Delete ${nameOf(job)}${store.remembered ? ", its audio and its text, on the server" : ""}?`)) return;
    await told(async () => {
      await store.remove(job.id);
      forgetNames(job.id);
      jobs = jobs.filter((other) => other.id !== job.id);
      if (open?.job.id === job.id) location.hash = "";
      show();
    });
  },
  async retry(job) {
    await told(async () => {
      changed(await store.retry(job.id));
      route(true);
    });
  },
  async diarize(job) {
    await told(async () => {
      changed(await store.diarize(job.id, settings.get().speakers));
      route(true);
    });
  },
};

const list = new List(element("list"), element("none"), act);

// -- who is there -------------------------------------------------------------------------------------

async function begin() {
  element("server").textContent = "";
  say("");
  try {
    const models = await (await ask("/v1/models")).json();
    const model = models.data[0]?.id || "";
    element("server").textContent = model;
    ready = waitUntilReady();
    store = await chosen(model);
    settings.limit(store.remembered);
    jobs = await store.list();
    watch();
    show();
    route();
  } catch (error) {
    fail(error);
  }
}

// The server's jobs where it has them; else this tab, and the page says so.
async function chosen(model) {
  try {
    await ask("/v1/jobs?limit=1");
    return new ServerJobs();
  } catch (error) {
    if (error.status !== 404) throw error;
    say("Jobs are switched off on this server: the transcript lives in this tab only.");
    return new TabJobs(model);
  }
}

async function waitUntilReady() {
  const name = element("server").textContent;
  for (let loading = false; ; loading = true) {
    try {
      await ask("/ready");
      if (loading) element("server").textContent = name;
      return;
    } catch (error) {
      element("server").textContent = error.status === 503 ? `${name}: ${error.message}` : error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function fail(error) {
  if (!(error instanceof Refusal)) throw error;
  if (error.needsKey) {
    say(key() ? "The server does not know this key." : "This server asks for an API key.");
    element("access").open = true;
    element("key").focus();
    return;
  }
  say(error.message);
}

function say(text) {
  notice.textContent = text;
  notice.hidden = !text;
}

async function told(work) {
  try {
    await work();
  } catch (error) {
    fail(error);
  }
}

// -- recordings in ------------------------------------------------------------------------------------

async function take(files) {
  if (!store) return say("There is no connection to the server yet.");
  const options = settings.get();
  const waiting = files.map((file, n) => ({
    id: `sending-${Date.now()}-${n}`,
    state: "sending",
    label: file.name,
    created_at: Date.now() / 1000,
    sent: 0,
    stop: new AbortController(),
    file,
  }));
  sending = [...sending, ...waiting];
  element("said").textContent = files.length > 1 ? `${files.length} recordings on their way` : "";
  show();
  for (const [n, one] of waiting.entries()) await send(one, options, n === 0);
  element("said").textContent = "";
}

// One after the other: the first is being transcribed while the next is on its way.
async function send(one, options, first) {
  try {
    const aborted = new Promise((resolve) => one.stop.signal.addEventListener("abort", resolve));
    await Promise.race([ready, aborted]); // what comes too early waits here, not in an error
    if (one.stop.signal.aborted) return;
    const onprogress = (share) => {
      one.sent = share;
      show();
    };
    const job = await store.create(one.file, options, { onprogress, signal: one.stop.signal });
    jobs = [job, ...jobs.filter((other) => other.id !== job.id)];
    if (first) location.hash = encodeURIComponent(job.id);
  } catch (error) {
    if (error.name !== "AbortError") fail(error instanceof Refusal ? new Refusal(`${one.label}: ${error.message}`, error) : error);
  } finally {
    sending = sending.filter((other) => other !== one);
    show();
  }
}

// -- the list and the one that is open ----------------------------------------------------------------

function show() {
  list.show([...sending].reverse().concat(jobs), open?.job.id);
}

function changed(job) {
  jobs = jobs.map((other) => (other.id === job.id ? job : other));
  show();
}

let watching = null;

// Others of this key may add jobs too; nobody looks while the page is hidden.
function watch() {
  clearInterval(watching);
  watching = setInterval(async () => {
    if (document.hidden || !jobs.some(busy)) return;
    try {
      jobs = await store.list();
      show();
    } catch (error) {
      if (error.needsKey) fail(error);
    }
  }, POLL_MS);
}

async function route(again = false) {
  if (!store) return;
  const id = decodeURIComponent(location.hash.slice(1));
  if (open && open.job.id === id && !again) return;
  open?.close();
  open = null;
  document.body.classList.toggle("reading", Boolean(id));
  if (!id) return home();
  try {
    const job = await store.get(id);
    if (decodeURIComponent(location.hash.slice(1)) !== id) return;
    document.title = `${nameOf(job)} · forescribe`;
    open = new Open(element("content"), store, job, { changed, act });
    show();
    open.title.focus({ preventScroll: true });
    scrollTo({ top: 0, behavior: calmly() });
    await open.run();
  } catch (error) {
    if (error.status === 404) home(error.message);
    else fail(error);
  }
}

function home(message = "") {
  document.title = "forescribe";
  document.body.classList.toggle("reading", Boolean(message));
  element("content").replaceChildren(
    message ? h("a", { class: "back", href: "#" }, "All recordings") : "",
    h(
      "div",
      { class: "empty" },
      h("h1", {}, message ? "Not here" : "What was said, and by whom"),
      h("p", {}, message || "Drop a recording, or make one. The text appears while it is being written; click a word to hear it."),
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
addEventListener("hashchange", () => route());
intake(take);
home();
begin();
