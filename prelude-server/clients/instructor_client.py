# requires: instructor==1.17.0
"""instructor: typed answers through JSON schemas and through tools, whole, in lists, and streamed."""

from typing import Literal

import instructor
import openai
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel, ConfigDict, field_validator
from support import *

TOPICS = ("card", "payment", "transfer", "topup", "cash", "exchange", "identity", "account")
Topic = Literal[TOPICS]


class Ticket(BaseModel):
    """What a message is about."""

    # Else a schema allows properties of any name, and so small a model talks on in those.
    model_config = ConfigDict(extra="forbid")

    topic: Topic
    urgent: bool


plain = openai.OpenAI(base_url=FULL_URL + "/v1", api_key=KEY, max_retries=0)
asked = dict(model="demo-lm", messages=TOPIC, temperature=0, max_tokens=400,
             extra_body=NO_THINKING)

# The same answer whichever way instructor asks for the type.
found = {}
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
    client = instructor.from_openai(plain, mode=mode)
    ticket, raw = client.chat.completions.create_with_completion(
        response_model=Ticket, max_retries=0, **asked)
    assert isinstance(ticket, Ticket), ticket
    assert raw.usage.completion_tokens > 0
    found[mode] = ticket
# A schema in place of a tool: what instructor makes of the answer is what the server said.
client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
said = plain.chat.completions.create(
    response_format={"type": "json_schema", "json_schema": {
        "name": "Ticket", "schema": Ticket.model_json_schema()}}, **asked)
equal(Ticket.model_validate_json(said.choices[0].message.content).topic,
      found[instructor.Mode.JSON_SCHEMA].topic)

# Partial answers grow into the whole one.
parts = list(client.chat.completions.create_partial(response_model=Ticket, max_retries=0, **asked))
assert len(parts) > 1, parts
equal((parts[-1].topic, parts[-1].urgent),
      (found[instructor.Mode.JSON_SCHEMA].topic, found[instructor.Mode.JSON_SCHEMA].urgent))


# A validator's refusal is asked again with the error in the messages, as often as allowed.
class Never(BaseModel):
    model_config = ConfigDict(extra="forbid")

    topic: Topic

    @field_validator("topic")
    @classmethod
    def refuse(cls, value):
        raise ValueError("try another")


error = raises(InstructorRetryException,
               lambda: client.chat.completions.create(response_model=Never, max_retries=2, **asked))
# The first attempt and two more.
equal(error.n_attempts, 3)
