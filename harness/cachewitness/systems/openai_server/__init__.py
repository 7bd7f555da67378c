"""The engine `openai-server`: any server behind a URL that speaks OpenAI's completions, judged by
its answers.

What it must offer is asked of it before the first trace: prompts and answers as token ids,
logprobs, a count of cached tokens, and a way to be asked without its cache. What it does not prove
is refused.
"""
