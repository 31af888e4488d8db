// Makes two calls with a client at its default settings, and prints what came of the second:
//
//     node client.mjs NAME URL

import Anthropic from "@anthropic-ai/sdk";
import got from "got";
import ky from "ky";
import OpenAI from "openai";

const messages = [{ role: "user", content: "hello" }];

const clients = {
  openai: (url) => {
    const client = new OpenAI({ apiKey: "none", baseURL: `${url}/v1` });
    return () => client.chat.completions.create({ model: "any", messages });
  },
  anthropic: (url) => {
    const client = new Anthropic({ apiKey: "none", baseURL: url });
    return () => client.messages.create({ model: "any", max_tokens: 1, messages });
  },
  got: (url) => () => got(url),
  ky: (url) => () => ky(url),
};

const [name, url] = process.argv.slice(2);
const call = clients[name](url);
await call();
try {
  await call();
  console.log("answered");
} catch (error) {
  if (error.status !== 429) throw error;
  console.log("gave up");
}
