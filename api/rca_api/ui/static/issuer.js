// Sign-in at the token issuer: authorization code with PKCE. The service exchanges the code, so no other host is called.

import { access, get, key, Problem, send } from "./api.js";
import { base64url, random } from "./random.js";

//: What this tab has to remember while the browser is at the issuer.
const BEGUN = "rca-sign-in";
const REDIRECT = `${location.origin}/ui`;

/** Send the browser to the issuer. */
export async function begin() {
  if (!crypto.subtle) {
    throw new Problem(401, { title: "The account cannot be used here", detail: "The browser allows this sign-in over HTTPS only." });
  }
  const { address, client_id: client, scope } = await get("/ui/sign-in");
  const [state, verifier] = [random(), random()];
  sessionStorage.setItem(BEGUN, JSON.stringify({ state, verifier, part: location.hash }));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const challenge = base64url(new Uint8Array(digest));
  const url = new URL(address);
  // The service knows the verifier, so it can compare the nonce of the ID token.
  const asked = {
    response_type: "code", client_id: client, redirect_uri: REDIRECT, scope, state,
    code_challenge: challenge, code_challenge_method: "S256", nonce: challenge,
  };
  for (const [name, value] of Object.entries(asked)) url.searchParams.set(name, value);
  location.assign(url);
  return null;
}

/** Take the code that the issuer sent back in the address, if there is one, and keep its token. */
export async function finish() {
  const given = new URLSearchParams(location.search);
  if (!given.has("state")) return;
  const begun = JSON.parse(sessionStorage.getItem(BEGUN));
  const own = begun !== null && given.get("state") === begun.state;
  // The code stays neither in the address nor in the history.
  history.replaceState(null, "", `/ui${own ? begun.part : location.hash}`);
  if (!own) {
    // A link of someone else ends neither a sign-in in progress nor one that is done.
    if (["open", "signed in"].includes(await access())) return;
    throw new Problem(401, { title: "The sign-in did not begin in this tab", detail: "The address is from another sign-in." });
  }
  sessionStorage.removeItem(BEGUN);
  if (!given.has("code")) {
    const reason = given.get("error_description") ?? given.get("error") ?? "It gave no reason.";
    throw new Problem(401, { title: "The issuer refused the sign-in", detail: reason });
  }
  const { token } = await send("/ui/sign-in", { code: given.get("code"), verifier: begun.verifier, redirect_uri: REDIRECT });
  key.set(token);
}
