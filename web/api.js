// Talking to the server: one streamed chat completion, the served model. Not here: what is shown (app.js).

function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

async function failure(response) {
  const text = await response.text();
  try {
    return new Error(JSON.parse(text).error.message);
  } catch {
    return new Error(`${response.status} ${response.statusText}`);
  }
}

// The model's entry of /v1/models; throws while the server is loading or wants a key.
export async function model(key) {
  const response = await fetch("/v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  return (await response.json()).data[0];
}

// Server-sent events as parsed objects; comments come as strings.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith(":")) yield part.slice(1).trim();
      else if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

// on({content, reasoning, finish, usage, prefill}) for each piece. Aborting the signal closes the connection, which stops the model.
export async function chat(request, key, signal, on) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(key), signal, body: JSON.stringify({ ...request, stream: true }),
  });
  if (!response.ok) throw await failure(response);
  for await (const event of events(response.body)) {
    if (typeof event === "string") {
      const m = event.match(/^keepalive (\d+)\/(\d+)/);
      if (m && +m[2]) on({ prefill: +m[1] / +m[2] });
      continue;
    }
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0];
    on({ content: choice?.delta?.content, reasoning: choice?.delta?.reasoning, finish: choice?.finish_reason, usage: event.usage });
  }
}
