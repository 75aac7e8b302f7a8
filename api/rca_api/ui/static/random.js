// Random names. `crypto.randomUUID` does not exist without HTTPS.

/** Bytes as base64url. */
export function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** 256 random bits as 43 letters, digits, `-` and `_`. */
export const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
