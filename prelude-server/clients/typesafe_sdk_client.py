# requires: typesafe-sdk==0.7.5
"""System One's own SDK: typed decisions, models, errors."""

from typesafe_sdk import (Choice, Noul, Score, TypeSafeAuthenticationError, TypeSafeClient,
                          TypeSafeUnprocessableEntityError)
from support import *

client = TypeSafeClient(api_key=KEY, base_url=FULL_URL)
questions = {
    "lost": Noul(instructions="Is a card missing?"),
    "topic": Choice(instructions="Which topic?", criteria={"card": None, "transfer": None}),
    "anger": Score(instructions="How angry?", criteria=["Calm", "Cross", "Furious"]),
}
found = client.system_one(state=CARD, questions=questions)
plain = post("/v1/systemone", {"state": CARD, "questions": {
    "lost": {"type": "noul", "instructions": "Is a card missing?"},
    "topic": {"type": "choice", "instructions": "Which topic?",
              "criteria": {"card": None, "transfer": None}},
    "anger": {"type": "score", "instructions": "How angry?",
              "criteria": ["Calm", "Cross", "Furious"]}}})["answers"]
close(found.answers["lost"].noul, plain["lost"]["noul"])
equal(found.answers["topic"].choice, plain["topic"]["choice"])
close(found.answers["topic"].confidence, plain["topic"]["confidence"])
close(found.answers["anger"].score, plain["anger"]["score"])
equal([m.name for m in client.models.list().models], ["demo-lm"])
