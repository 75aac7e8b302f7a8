// Requests to this service. A key stays in sessionStorage: it is gone when the tab is closed.

const KEY = "rca-key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  clear: () => sessionStorage.removeItem(KEY),
  /** Whether it is a token of the issuer. */
  isToken: () => key.get() !== null && !key.get().startsWith("rca_"),
};

/** An answer that is an error, with what to do about it. */
export class Problem extends Error {
  constructor(status, body, retryAfter) {
    super(body.detail ?? "The service gave no reason.");
    this.status = status;
    this.code = body.code ?? "";
    this.body = body;
    this.retryAfter = retryAfter;
  }

  get title() {
    return this.body.title ?? (this.status === 0 ? "The service does not answer" : `Error ${this.status}`);
  }

  /** What a person can do now. */
  get advice() {
    const wait = this.retryAfter ? `in ${this.retryAfter} s` : "in a minute";
    if (this.status === 0) return "Check the network and whether the service runs, then try again.";
    if (this.status === 401) return "Sign in with a valid key, or with your account again. An administrator makes keys: rca keys create.";
    if (this.status === 403) {
      return key.isToken()
        ? "Your account lacks this right. Ask an administrator for its scope at the issuer (RCA_OIDC_CLIENT_SCOPE requests it), then sign in again."
        : "Sign in with a key that has this scope, or ask an administrator for one.";
    }
    if (this.status === 404) return "Check the address. It may have been deleted.";
    if (this.status === 429 || this.status === 503) return `Try again ${wait}.`;
    if (this.status === 501) return this.body.hint ? `An operator can add it: ${this.body.hint}` : "An operator has to set it up.";
    if (this.status >= 500) return `Report it to the operator with the request id ${this.body.request_id ?? ""}.`;
    return this.body.hint ?? "Correct the input and try again.";
  }
}

/**
 * Send a request.
 * @param {string} method
 * @param {string} path  On this service.
 * @param {object} options  `body`, `headers`, `accept`, `signal`.
 * @returns {Promise<Response>}
 * @throws {Problem}
 */
export async function call(method, path, { body, headers = {}, accept = "application/json", signal } = {}) {
  const all = { Accept: accept, ...headers };
  if (key.get()) all.Authorization = `Bearer ${key.get()}`;
  let answer;
  try {
    answer = await fetch(path, { method, body, headers: all, signal, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "No answer came from the service." });
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, told, answer.headers.get("Retry-After"));
}

export async function get(path, signal) {
  return (await call("GET", path, { signal })).json();
}

export async function text(path, accept, signal) {
  return (await call("GET", path, { accept, signal })).text();
}

/** Send JSON; gives the document of the answer. */
export async function send(path, document = undefined, method = "POST") {
  const options = document === undefined ? {} : { body: JSON.stringify(document), headers: { "Content-Type": "application/json" } };
  return (await call(method, path, options)).json();
}

let known = null;

/** The catalogue of causes, phases and signals; fetched once. */
export async function catalogue() {
  // After a failure the next call fetches it again.
  known ??= get("/ui/catalogue").catch((error) => {
    known = null;
    throw error;
  });
  return known;
}

/** Whether a person can go on: "open" (no key is needed), "signed in", "refused" or "key needed". */
export async function access() {
  const { keys } = await get("/ui/access");
  if (!keys) return "open";
  if (!key.get()) return "key needed";
  try {
    await get("/v1/diagnoses?limit=1");
  } catch (error) {
    if (error.status === 401) return "refused";
    // A key without the scope `read` is a key all the same.
    if (error.status !== 403) throw error;
  }
  return "signed in";
}
