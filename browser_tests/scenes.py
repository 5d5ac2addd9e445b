"""Messages of the gallery, each with the script that an agent of the shop plays (shop.py, talker.py)."""

from typing import Any

NEVER = {"wait": "/nonexistent"}
STOCK = """\
Most items are there; **cups run low**.

| Item | In stock | Sold in October |
|---|--:|--:|
| Teapot | 12 | 41 |
| Cup | 12 | 118 |
| Kettle | 12 | 23 |

1. Order cups now: at 118 a month they last *three days*.
2. Teapots last until `2026-12-02`.

```python
days = stock["cup"] / sold["cup"] * 30
```
"""
PLAN = """\
1. Count the cups in stock.
2. Ask the scout for a price.
3. Name the number of cups to order.

<end_plan>"""
ARABIC = "أين طلبي رقم 1042؟"
ARABIC_ANSWER = """\
تم تسليم الطلب **1042** إلى آن لي. يحتوي على:

1. إبريق شاي
2. كوبان

> المجموع: 64.50 يورو
"""
FOUND = {"think": ["I look for the order."], "call": [["find_order", {"number": 1042}]]}
MAIL = "Dear Ann,\nyou get 10 euros back for the broken cup.\nYour shop"

SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "Where is order 1042?": [
        FOUND,
        {"say": ["Order **1042** of Ann Lee was delivered: a teapot and two cups, for 64.50 €."]},
    ],
    "What do we have in stock?": [
        {
            "think": ["I count the items that sell most."],
            "call": [
                ["check_stock", {"item": "teapot"}],
                ["check_stock", {"item": "cup"}],
                ["check_stock", {"item": "kettle"}],
            ],
        },
        {"say": [STOCK]},
    ],
    "Please check the samovar too.": [
        {"think": ["I count them."], "call": [["check_stock", {"item": "samovar"}]]},
        {"say": ["No item is called *samovar*. Do you mean the kettle?"]},
    ],
    "Ann's cup is broken. Pay her 10 euros back and tell her.": [
        FOUND,
        {
            "think": ["One cup is 10 euros. I pay it back and write to Ann."],
            "call": [
                ["refund", {"order": 1042, "amount": 10.0, "reason": "broken cup"}],
                ["send_email", {"to": "ann@example.org", "text": MAIL}],
            ],
        },
        {"say": ["Ann gets 10 € back, and an e-mail about it."]},
    ],
    "Send Ann a new cup.": [
        {
            "think": ["The colour is not known, so I ask."],
            "call": [
                [
                    "ask_user",
                    {
                        "question": "Which colour shall the new cup have?",
                        "choices": ["white", "blue", "as the broken one"],
                    },
                ]
            ],
        },
        {"say": ["A blue cup goes to Ann."]},
    ],
    "How many cups shall we order?": [
        {"think": ["I count the cups first."], "call": [["check_stock", {"item": "cup"}]]},
        {"think": ["Now the price."], "call": [["scout", {"task": "Find the price of 100 cups."}]]},
        {"say": ["Order **100 cups** at 21.90 € for ten. They arrive in 10 days."]},
    ],
    "Find the price of 100 cups.": [
        {"think": ["I ask the supplier."], "call": [["ask_supplier", {"item": "cup"}]]},
        {"say": ["Ten cups are 21.90 €, and they come in 10 days."]},
    ],
    "Which item sold best in October?": [
        {
            "write": [
                (
                    "Thought: I sort the sales of the month.\n<code>\nsold = sales(month='2026-10')\n"
                    "best = max(sold, key=sold.get)\nfor item, pieces in sold.items():\n"
                    "    print(f'{item:8}{pieces:>5}')\n</code>"
                )
            ]
        },
        {"write": ["Thought: I know it.\n<code>\nfinal_answer(f'The **{best}**, with {sold[best]} pieces.')\n</code>"]},
    ],
    "This cup came today. Draw what we sold.": [
        {"think": ["I draw the sales."], "call": [["draw_chart", {"title": "Sold in October"}]]},
        {"say": ["image.png"]},
    ],
    "Write the invoice of the order in this file.": [
        {"think": ["The file names order 1042."], "call": [["write_invoice", {"order": 1042}]]},
        {"say": ["invoice-1042.csv"]},
    ],
    "Read it to me.": [
        {"call": [["read_aloud", {"text": "Your order was delivered."}]]},
        {"say": ["audio.wav"]},
    ],
    "Write to every customer of October.": [FOUND, {"say": ["I begin with **Ann Lee**. Her order ", NEVER]}],
    "And the ones of September.": [{"say": ["Done."]}],
    "Which supplier is the cheapest?": [FOUND, {"raise": "the model's provider does not answer"}],
    "Note that Ann likes blue.": [
        {"call": [["note_write", {"text": "Ann Lee (order 1042) likes blue."}]]},
        {"say": ["I keep that in mind."]},
    ],
    ARABIC: [{"think": ["أبحث عن الطلب."], "call": [["find_order", {"number": 1042}]]}, {"say": [ARABIC_ANSWER]}],
}
