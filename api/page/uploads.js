// Uploads by tus (docs/jobs.md): the bytes that have arrived are kept when the connection breaks or the server
// restarts.
import { persistently } from "./connection.js";
import { ask, bodyOf, Refusal } from "./http.js";

const PIECE = 4 << 20; // a request: proxies take no bodies of any size, and progress is told after each
const TUS = { "Tus-Resumable": "1.0.0" };

// The id of the finished upload. `onprogress` receives shares from 0 to 1, `ontrouble` the reason for a wait.
export async function upload(file, watch) {
  const { signal, ontrouble } = watch;
  const again = (work) => persistently(work, { signal, ontrouble });
  const id = await again(() => create(file));
  try {
    await fill(id, file, again, watch);
    return id;
  } catch (error) {
    if (signal.aborted) ask(at(id), { method: "DELETE", headers: TUS }).catch(() => {});
    throw error;
  }
}

async function fill(id, file, again, watch) {
  let offset = null; // only the server knows
  while (offset === null || offset < file.size) {
    offset = await again(async () => {
      const from = offset ?? arrived(await ask(at(id), { method: "HEAD", headers: TUS }));
      offset = null;
      watch.onprogress(file.size ? from / file.size : 1);
      return from < file.size ? append(id, file, from, watch) : from;
    });
  }
}

async function create(file) {
  const name = btoa(String.fromCharCode(...new TextEncoder().encode(file.name.toWellFormed())));
  const headers = { ...TUS, "Upload-Length": String(file.size), "Upload-Metadata": `filename ${name}` };
  const answer = await ask("v1/uploads", { method: "POST", headers });
  await bodyOf(answer, "text");
  return answer.headers.get("Location").split("/").at(-1);
}

function arrived(answer) {
  return Number(answer.headers.get("Upload-Offset"));
}

async function append(id, file, offset, { signal }) {
  const headers = { ...TUS, "Upload-Offset": String(offset), "Content-Type": "application/offset+octet-stream" };
  await check(file, file.size, offset);
  try {
    return arrived(await ask(at(id), { method: "PATCH", body: file.slice(offset, offset + PIECE), headers, signal }));
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

function at(id) {
  return `v1/uploads/${encodeURIComponent(id)}`;
}
