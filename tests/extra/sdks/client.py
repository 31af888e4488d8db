"""Makes two calls with a client at its default settings, and prints what came of the second.

python client.py NAME URL
"""

import sys

import anthropic
import openai
import urllib3

MESSAGES = [{"role": "user", "content": "hello"}]


def openai_client(url):
    client = openai.OpenAI(api_key="none", base_url=f"{url}/v1")
    return lambda: client.chat.completions.create(model="any", messages=MESSAGES)


def anthropic_client(url):
    client = anthropic.Anthropic(api_key="none", base_url=url)
    return lambda: client.messages.create(model="any", max_tokens=1, messages=MESSAGES)


def urllib3_client(url):
    # Its default retries three times, and only what it is told to retry, which is 429 with `Retry-After` among others.
    client = urllib3.PoolManager()
    return lambda: client.request("GET", url)


name, url = sys.argv[1:]
call = {"openai": openai_client, "anthropic": anthropic_client, "urllib3": urllib3_client}[name](url)
call()
try:
    call()
    print("answered")
except (openai.RateLimitError, anthropic.RateLimitError):
    print("gave up")
