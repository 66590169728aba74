"""Typed decisions about a bank's messages: the questions that the demo language model is trained on,
what is right for each intent, the prompts in which a server asks them (prelude-decide-1), and what a
running server answers."""
import json
import random
import time
import urllib.request

SYSTEMS = ["You judge messages of a bank's customers.", "You read messages to a bank.",
           "You sort the messages of customers."]

# What options say beside the topics' names.
MEANINGS = {
    "card": ["a card", "cards and PINs", "ordering and using cards"],
    "payment": ["a payment by card", "payments and refunds", "money paid to a shop"],
    "transfer": ["a bank transfer", "sending and receiving money", "transfers"],
    "topup": ["a top-up", "adding money", "topping up the account"],
    "cash": ["cash from an ATM", "withdrawing cash", "an ATM"],
    "exchange": ["currencies", "exchange rates", "exchanging money"],
    "identity": ["verifying who someone is", "proof of identity", "verification"],
    "account": ["the account itself", "personal details", "the account or the phone"],
}
TOPIC_ASKED = [
    "Which topic?", "Which topic is this message about?", "What is this about?", "What is the topic?",
    "What is the message about?", "Which topic fits best?", "What does the customer write about?",
    "What does the customer ask about?", "Which team should answer?", "Who should answer?",
    "Choose the topic.", "Classify the message.", "Topic?", None,
]
INTENT_ASKED = ["Which intent?", "What is the intent?", "What does the customer want?",
                "Which intent is it?", "Choose the intent.", "Intent?", None]

THINGS = {
    "card": ["a card", "the card", "cards"], "payment": ["a payment", "a card payment", "payments"],
    "transfer": ["a transfer", "a bank transfer", "transfers"],
    "topup": ["a top-up", "topping up", "a topup", "top-ups"],
    "cash": ["cash", "a cash withdrawal", "an ATM"],
    "exchange": ["an exchange rate", "currency exchange", "exchange", "currencies"],
    "identity": ["identity", "verifying an identity", "verification"],
    "account": ["an account", "the account", "account settings"],
}
ABOUT = ["Is this about {}?", "Is it about {}?", "Is the message about {}?",
         "Is the customer asking about {}?", "Does the customer write about {}?",
         "Does this concern {}?", "Is the topic {}?"]

# How much trouble a message tells of; intents that are not listed are questions without any (0).
TROUBLE = {
    1: """Refund_not_showing_up balance_not_updated_after_bank_transfer
        balance_not_updated_after_cheque_or_cash_deposit beneficiary_not_allowed cancel_transfer
        card_arrival card_not_working card_payment_fee_charged card_payment_wrong_exchange_rate
        cash_withdrawal_charge contactless_not_working declined_card_payment
        declined_cash_withdrawal declined_transfer extra_charge_on_statement failed_transfer
        passcode_forgotten pending_card_payment pending_cash_withdrawal pending_top_up
        pending_transfer pin_blocked request_refund reverted_card_payment? top_up_failed
        top_up_reverted transfer_fee_charged transfer_not_received_by_recipient
        unable_to_verify_identity virtual_card_not_working wrong_exchange_rate_for_cash_withdrawal""",
    2: """card_payment_not_recognised card_swallowed cash_withdrawal_not_recognised
        compromised_card direct_debit_payment_not_recognised lost_or_stolen_card
        lost_or_stolen_phone transaction_charged_twice wrong_amount_of_cash_received""",
}
TROUBLE_OF = {label: level for level, labels in TROUBLE.items() for label in labels.split()}
# Questions and levels, from low to high; a scale of two to five levels has the three grades of
# trouble in its first, middle and last level.
SCALES = [
    (["How angry?", "How angry is the customer?", "How upset is the customer?"],
     [["Calm", "Cross", "Furious"], ["calm", "cross", "furious"], ["Calm", "Annoyed", "Angry"],
      ["Calm", "Angry", "Very angry"], ["Calm", "Furious"], ["calm", "angry"],
      ["Calm", "Uneasy", "Annoyed", "Angry", "Furious"]]),
    (["How urgent?", "How urgent is it?", "How urgent is the message?", "Rate the urgency."],
     [["Can wait", "Soon", "At once"], ["low", "medium", "high"], ["Low", "Medium", "High"],
      ["not urgent", "urgent", "very urgent"], ["Not urgent", "Urgent"], ["low", "high"],
      ["Very low", "Low", "Medium", "High", "Very high"], ["1", "2", "3", "4", "5"],
      ["low", "medium", "high", "critical"]]),
    (["How serious?", "How serious is the problem?", "How bad is it?", "How much trouble is there?"],
     [["No problem", "A problem", "Money or card lost"], ["none", "some", "much"],
      ["minor", "major", "critical"], ["None", "Small", "Large"], ["no", "little", "some", "a lot"],
      ["No problem", "A problem"], ["none", "small", "middling", "large", "very large"]]),
]

# Other questions of yes or no: the intents for which the answer is yes, and wordings.
PREDICATES = [
    ("card_arrival lost_or_stolen_card card_swallowed",
     ["Is a card missing?", "Is the card missing?", "Is a card lost?", "Has the customer no card?"]),
    (TROUBLE[2], ["Is it urgent?", "Is this urgent?", "Is the matter urgent?", "Is money or a card in danger?",
                  "Does it need an answer today?"]),
    (TROUBLE[1] + " " + TROUBLE[2], ["Is there a problem?", "Is something wrong?", "Does the customer complain?",
                                     "Is this a complaint?", "Is the customer unhappy?"]),
    ("""card_payment_fee_charged cash_withdrawal_charge exchange_charge extra_charge_on_statement
        top_up_by_bank_transfer_charge top_up_by_card_charge transfer_fee_charged""",
     ["Is it about a fee?", "Is this about a fee?", "Is the customer asking about fees?",
      "Does the customer ask about a charge?"]),
    ("declined_card_payment declined_cash_withdrawal declined_transfer",
     ["Was something declined?", "Is something declined?", "Has something been declined?"]),
    ("pending_card_payment pending_cash_withdrawal pending_top_up pending_transfer",
     ["Is something pending?", "Is something still pending?"]),
    ("lost_or_stolen_card lost_or_stolen_phone",
     ["Was something stolen?", "Is something lost or stolen?"]),
]
CALLED = [("yes", "no"), ("it is", "it is not"), ("true", "false"), ("true", None)]


# ------------------------------------------------------------------ prompts

def turn(state, question, by_name=False):
    """The user's turn that asks a question, as prelude-decide-1 has it."""
    kind, criteria = question["type"], question.get("criteria")
    default, rule = {
        "noul": ("Yes or no?", "Answer with yes or no."),
        "score": ("Which level fits best?", "Answer with one digit."),
        "choice": ("Which option fits best?",
                   "Answer with the name of one option." if by_name else "Answer with one letter."),
    }[kind]
    lines = ["Question: " + question.get("instructions", default)]
    if kind == "noul":
        for label, key in (("yes", "true"), ("no", "false")):
            if criteria and criteria.get(key) is not None:
                lines.append(f"{label}: {criteria[key]}")
    elif kind == "score":
        lines += [f"{i}: {level}" for i, level in enumerate(criteria)]
    else:
        for i, (name, meaning) in enumerate(criteria.items()):
            code = "" if by_name else chr(ord("A") + i) + ": "
            lines.append(code + name + ("" if meaning is None else " - " + meaning))
    return "\n".join([state + "\n", *lines, rule])


def compact(value):
    """JSON as prompts show it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def prompt(state, question, by_name=False, system=None):
    """The whole prompt, up to where the answer begins."""
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return (f"{head}<|im_start|>user\n{turn(compact(state), question, by_name)}<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n")


def label(question, answer):
    """What a model says that answers so: answers are booleans, options and levels."""
    return {"noul": lambda: "yes" if answer else "no", "score": lambda: str(answer),
            "choice": lambda: chr(ord("A") + list(question["criteria"]).index(answer))}[question["type"]]()


# ---------------------------------------------------------------- questions

def asked(kind, instructions, criteria=None):
    question = {"type": kind}
    if instructions is not None:
        question["instructions"] = instructions
    if criteria is not None:
        question["criteria"] = criteria
    return question


def level_of(intent, levels):
    """The level of an intent's trouble on a scale of two to five levels."""
    return (TROUBLE_OF.get(intent, 0) * (levels - 1) + 1) // 2


def ask_topic(topic, topics, rng, count=None):
    """A choice among topics in any order; count is the number of options."""
    count = count or rng.choice([2, 3, 3, 3, 4, 4, 5, 6, 7, 8])
    names = [topic] + rng.sample([t for t in topics if t != topic], count - 1)
    rng.shuffle(names)
    described = rng.choice([0, 0, 0, 0.5, 1])
    upper = rng.random() < 0.1
    criteria = {t.capitalize() if upper else t:
                rng.choice(MEANINGS[t]) if rng.random() < described else None for t in names}
    return asked("choice", rng.choice(TOPIC_ASKED), criteria), topic.capitalize() if upper else topic


def ask_intent(intent, near, intents, rng):
    """A choice among intents, some of them of the same topic (near)."""
    count = rng.choice([2, 3, 3, 4, 5, 6])
    names = {intent: None}
    while len(names) < count:
        names[rng.choice(near if rng.random() < 0.3 else intents)] = None
    names = list(names)
    rng.shuffle(names)
    return asked("choice", rng.choice(INTENT_ASKED), dict.fromkeys(names)), intent


def ask_about(topic, topics, rng, answer):
    """Whether a message is about a topic, its own if the answer is yes."""
    named = topic if answer else rng.choice([t for t in topics if t != topic])
    return asked("noul", rng.choice(ABOUT).format(rng.choice(THINGS[named]))), answer


def ask_predicate(intent, rng, answer=None, predicate=None):
    """Another question of yes or no, with this answer if any has it, or this one."""
    fits = [p for p in PREDICATES if answer is None or (intent in p[0].split()) == answer]
    intents, wordings = predicate or rng.choice(fits or PREDICATES)
    return asked("noul", rng.choice(wordings)), intent in intents.split()


def ask_level(intent, rng):
    wordings, scales = rng.choice(SCALES)
    levels = rng.choice(scales)
    instructions = rng.choice(wordings) if rng.random() < 0.95 else None
    return asked("score", instructions, levels), level_of(intent, len(levels))


def state_of(text, rng):
    """A message as a state: mostly itself, else JSON or with the writer's name before it."""
    r = rng.random()
    if r < 0.75:
        return text
    if r < 0.88:
        return {rng.choice(["message", "message", "message", "text", "email"]): text}
    if r < 0.95:
        return {"message": text, rng.choice(["tries", "priority", "id"]): rng.randrange(9)}
    return "Customer: " + text


def training_questions(intent, topic, near, intents, topics, rng, predicate=None):
    """A few questions about one message with their answers, one of them predicate's if there is one;
    near are the topic's intents."""
    yes = rng.random() < 0.5
    out = [ask_topic(topic, topics, rng), ask_about(topic, topics, rng, yes),
           ask_level(intent, rng)]
    out.append(ask_predicate(intent, rng, not yes if rng.random() < 0.7 else None, predicate))
    out.append(ask_intent(intent, near, intents, rng) if rng.random() < 0.35
               else ask_topic(topic, topics, rng))
    if rng.random() < 0.15:
        other = rng.choice(intents)
        answer = rng.random() < 0.5
        out[1] = asked("noul", f"Is the intent {intent if answer else other}?"), answer or other == intent
    for question, _ in out:
        if question["type"] == "noul" and rng.random() < 0.1:
            true, false = rng.choice(CALLED)
            question["criteria"] = {"true": true} if false is None else {"true": true, "false": false}
    return out


# --------------------------------------------------------------- evaluation

def test_questions(intent, topic, topics, rng):
    """The questions of the evaluation about one message, by the names of its measures."""
    names = rng.sample(topics, len(topics))
    other = rng.choice([t for t in topics if t != topic])
    three = rng.sample([t for t in topics if t != topic], 2) + [topic]
    rng.shuffle(three)
    predicate = ask_predicate(intent, rng, rng.random() < 0.5)
    missing = intent in PREDICATES[0][0].split()
    wide = ["Very low", "Low", "Medium", "High", "Very high"]
    return {
        "topic of 8": (asked("choice", "Which topic?", dict.fromkeys(names)), topic),
        "topic of 3": (asked("choice", "Which topic is this message about?", dict.fromkeys(three)), topic),
        "topic: yes": (asked("noul", f"Is this about {THINGS[topic][0]}?"), True),
        "topic: no": (asked("noul", f"Is the customer asking about {THINGS[other][0]}?"), False),
        f"other: {'yes' if predicate[1] else 'no'}": predicate,
        f"card missing: {'yes' if missing else 'no'}": (asked("noul", "Is a card missing?"), missing),
        "score of 3": (asked("score", "How angry?", ["Calm", "Cross", "Furious"]), level_of(intent, 3)),
        "score of 5": (asked("score", "How urgent is it?", wide), level_of(intent, 5)),
    }


def answer_of(answer):
    """A server's answer as one of a question."""
    if answer["type"] == "noul":
        return answer["noul"] > 0.5
    if answer["type"] == "choice":
        return answer["choice"]
    p = answer["probabilities"]
    p = [p[k] for k in sorted(p, key=int)] if isinstance(p, dict) else p
    return max(range(len(p)), key=p.__getitem__)


def post(url, body):
    request = urllib.request.Request(url + "/v1/systemone", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def evaluate(url, rows, topic_of, topics, seed):
    """Asks a running server about each message: accuracy, and mean and fifth percentile of the
    label mass, for each measure."""
    rng, found, start = random.Random(seed), {}, time.time()
    for text, intent in rows:
        questions = test_questions(intent, topic_of[intent], topics, rng)
        body = {"model": "demo-lm", "state": text, "questions": {k: q for k, (q, _) in questions.items()}}
        got = post(url, body)
        masses = got["x_prelude"]["diagnostics"]
        for name, (_, right) in questions.items():
            found.setdefault(name, []).append(
                (answer_of(got["answers"][name]) == right, masses[name]["label_mass"]))
    for name, pairs in found.items():
        masses = sorted(m for _, m in pairs)
        found[name] = {"answers": len(pairs), "accuracy": round(sum(r for r, _ in pairs) / len(pairs), 4),
                       "label_mass": round(sum(masses) / len(masses), 4),
                       "label_mass_p5": round(masses[len(masses) // 20], 4)}
    print(f"{len(rows)} messages in {time.time() - start:.0f} s", flush=True)
    return {"rows": len(rows), **found}
