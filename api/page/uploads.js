// Uploads by tus (docs/jobs.md): the bytes that have arrived are kept when the connection breaks, the server
// restarts, or the page is closed and the same file is chosen again.
import { persistently } from "./connection.js";
import { ask, bodyOf, Refusal, send } from "./http.js";

const SHELF = "forescribe.uploads";
const PIECE = 16 << 20; // a request; proxies take no bodies of any size
const MOST = 50;
const TUS = { "Tus-Resumable": "1.0.0" };

// The id of the finished upload. `onprogress` receives shares from 0 to 1, `ontrouble` the reason for a wait.
export async function upload(file, watch) {
  const { signal, ontrouble } = watch;
  const again = (work) => persistently(work, { signal, ontrouble });
  for (let begun = 0; ; begun++) {
    const id = (begun ? null : await earlier(file, again)) || (await again(() => create(file)));
    try {
      await fill(id, file, again, watch);
      return id;
    } catch (error) {
      forget(file);
      if (signal.aborted) ask(at(id), { method: "DELETE", headers: TUS }).catch(() => {});
      if (error.status !== 404 || begun) throw error; // else the server has lost it: once more
    }
  }
}

async function fill(id, file, again, watch) {
  let offset = null; // only the server knows
  while (offset === null || offset < file.size) {
    offset = await again(async () => {
      const from = offset ?? (await head(id, "Upload-Offset"));
      offset = null;
      watch.onprogress(share(from, file));
      return from < file.size ? append(id, file, from, watch) : from;
    });
  }
}

async function create(file) {
  const name = btoa(String.fromCharCode(...new TextEncoder().encode(wellFormed(file.name))));
  const headers = { ...TUS, "Upload-Length": String(file.size), "Upload-Metadata": `filename ${name}` };
  const answer = await ask("v1/uploads", { method: "POST", headers });
  await bodyOf(answer, "text");
  const id = answer.headers.get("Location").split("/").at(-1);
  keep((shelf) => ({ ...shelf, [mark(file)]: id }));
  return id;
}

// An unfinished upload of the same file, if the server still has it and no other tab uses it.
async function earlier(file, again) {
  const id = kept()[mark(file)];
  if (!id) return null;
  try {
    const length = await again(() => head(id, "Upload-Length"));
    if (length === file.size) return id;
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  forget(file);
  return null;
}

async function head(id, name) {
  const answer = await ask(at(id), { method: "HEAD", headers: TUS });
  return Number(answer.headers.get(name));
}

async function append(id, file, offset, { onprogress, signal }) {
  const headers = { ...TUS, "Upload-Offset": String(offset), "Content-Type": "application/offset+octet-stream" };
  const sent = (bytes) => onprogress(share(offset + bytes, file));
  await check(file, file.size, offset);
  try {
    const header = await send("PATCH", at(id), file.slice(offset, offset + PIECE), { headers, onprogress: sent, signal });
    return Number(header("Upload-Offset"));
  } catch (error) {
    if (error.code === "conflict") error.code = "locked"; // it is elsewhere: asked, then gone on with
    throw error;
  }
}

// A folder, or a file that was changed or removed since it was chosen, fails in a request like a broken
// connection, so it is checked before. Throws Refusal.
export async function check(file, size, offset = 0) {
  try {
    await file.slice(offset, offset + 1).arrayBuffer();
    if (file.size === size) return;
  } catch {
    // reported below
  }
  throw new Refusal("The file cannot be read: it is a folder, or was changed or removed since it was chosen.");
}

// The upload has become a job, or has failed.
export function forget(file) {
  keep((shelf) => {
    delete shelf[mark(file)];
    return shelf;
  });
}

function share(bytes, file) {
  return file.size ? Math.min(1, bytes / file.size) : 1;
}

function mark(file) {
  return `${file.name}/${file.size}/${file.lastModified}`;
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(SHELF)) || {};
  } catch {
    return {};
  }
}

function keep(change) {
  try {
    const entries = Object.entries(change(kept())).slice(-MOST);
    localStorage.setItem(SHELF, JSON.stringify(Object.fromEntries(entries)));
  } catch {
    // then it cannot be resumed after a reload
  }
}

function at(id) {
  return `v1/uploads/${encodeURIComponent(id)}`;
}

// File names may contain half of a surrogate pair, which cannot be encoded.
function wellFormed(text) {
  return text.toWellFormed ? text.toWellFormed() : text;
}
