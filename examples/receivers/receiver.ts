// Receive callbacks: check the signature, drop what was seen before, do the work once.
//
//   WEBHOOK_KEY=whpk_… PORT=9000 npx tsx receiver.ts        (Node 20 or newer; no packages)
//
// `timer-service signing-keys list --tenant …` shows the key, and with `--secret` also one for HMAC (whsec_…). While
// keys rotate, give both, separated by a space.

import { createHmac, createPublicKey, timingSafeEqual, verify } from "node:crypto";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";

const KEYS = (process.env.WEBHOOK_KEY ?? "").split(" ");
const TOLERANCE_S = 5 * 60;
const MAX_BODY_BYTES = 1024 * 1024;

// In production: a table of your database, written in the transaction that does the work.
const seen = new Set<string>();

function isSigned(key: string, version: string, text: string, content: Buffer): boolean {
  const signature = Buffer.from(text, "base64");
  const [prefix, encoded = ""] = key.split(/_(.*)/s);
  const bytes = Buffer.from(encoded, "base64");
  if (version === "v1a" && prefix === "whpk") {
    const x = bytes.toString("base64url");
    const publicKey = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
    return verify(null, content, publicKey, signature);
  }
  if (version === "v1" && prefix === "whsec") {
    const expected = createHmac("sha256", bytes).update(content).digest();
    return expected.length === signature.length && timingSafeEqual(expected, signature);
  }
  return false;
}

function isValid(request: IncomingMessage, body: Buffer): boolean {
  const id = String(request.headers["webhook-id"] ?? "");
  const timestamp = String(request.headers["webhook-timestamp"] ?? "");
  if (!/^\d+$/.test(timestamp) || Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_S) return false;
  const content = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), body]);
  return String(request.headers["webhook-signature"] ?? "")
    .split(" ")
    .some((part) => {
      const [version, text = ""] = part.split(/,(.*)/s);
      return KEYS.some((key) => isSigned(key, version, text, content));
    });
}

async function receive(request: IncomingMessage): Promise<number> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) return 413;
    chunks.push(chunk);
  }
  if (!isValid(request, Buffer.concat(chunks))) return 401;
  const id = String(request.headers["webhook-id"]);
  const isNew = !seen.has(id);
  seen.add(id);
  console.log(request.headers["timer-id"], isNew ? "done" : "seen before");
  return 204;
}

const server = createServer((request, response) => {
  receive(request).then(
    (status) => response.writeHead(status).end(),
    () => response.writeHead(500).end(), // Anything but 2xx comes again.
  );
});
server.listen(Number(process.env.PORT ?? 9000), "127.0.0.1", () => {
  console.log(`listening on port ${(server.address() as AddressInfo).port}`);
});
