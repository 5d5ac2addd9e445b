"""Programs that a model might write. Their values survive in another process, or are dropped.

A line `=== name` begins a program. The part behind `---` runs in the next process.
"""


def _pairs(text: str) -> dict[str, tuple[str, str]]:
    return {name: (first, then) for name, code in _named(text).items() for first, _, then in [code.partition("---\n")]}


def _named(text: str) -> dict[str, str]:
    found = {}
    for part in text.split("=== ")[1:]:
        name, _, code = part.partition("\n")
        found[name] = code
    return found


CARRIED = _pairs(r"""
=== plain data
a, b, c, d = 1, 2.5, True, 1 + 2j
e, f = 'é\n', b'\x00'
g = [1, (2, {3: {4}})]
---
print(a, b, c, d, type(c))
print(e, f)
print(g)
=== aliases
a = [1]
b = a
c = {'a': a}
d = [1]
---
a.append(2)
print(b, c, a is b, c['a'] is b, d is a)
=== cycles
a = []
a.append(a)
c = {}
d = [c]
c['d'] = d
---
print(a[0] is a, a)
print(c['d'] is d, d[0] is c)
=== containers of collections
from collections import Counter, OrderedDict, defaultdict, deque
a = defaultdict(list, {1: [2]})
b = defaultdict(lambda: [7])
c = deque([1], 3)
d = Counter('aab')
e = OrderedDict(x=1)
---
a[5].append(1)
c.append(2)
d.update('b')
print(a, b[1], list(b), c, d, e, Counter('z'))
=== a named tuple
from collections import namedtuple
P = namedtuple('P', 'x y', defaults=[5])
p = P(1)
---
print(p, p.x, P(3), isinstance(p, P), P, p._replace(x=9))
=== values of modules
import datetime
a = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
b = datetime.timedelta(1)
from decimal import Decimal
c = Decimal('1.10')
import re
d = re.compile('(x+)', re.I)
e = d.match('XX')[1]
---
print(a + b, datetime.date(2026, 1, 1))
print(c + Decimal(1))
print(d.findall('axX'), e, d)
=== modules and their functions
import math as m
import random
import collections.abc as c
from random import randint
from math import gcd as g
from datetime import datetime as d
---
print(m.pi, random.Random(1).random(), c.Sized)
print(randint(3, 3), g(4, 6), d(2026, 1, 1))
=== aliases of functions and tools
f = echo
g = len
h = fetch
def double(x):
    return 2 * x
k = double
x = [f, k]
---
print(f(1), g('abc'), h('q'), k(4), x[0](2), x[1](2))
=== a function and its later globals
def area(r):
    return scale * r
def twice(r):
    return area(r) * factor()
---
scale = 3
def factor():
    return 2
print(twice(5))
scale = 4
print(twice(5))
=== recursion
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)
fib = lambda n: n if n < 2 else fib(n - 1) + fib(n - 2)
def even(n):
    return True if n == 0 else odd(n - 1)
def odd(n):
    return False if n == 0 else even(n - 1)
---
print(fact(20))
print(fib(10))
print(even(10), odd(7))
=== default arguments
base = 1
def f(a, b=base, *rest, **more):
    return a, b, rest, more
---
print(f(1), f(1, 2, 3, k=4))
base = 9
print(f(1))
=== a closure
def counter():
    box = [0]
    def add(n):
        box[0] += n
        return box[0]
    def look():
        return box[0]
    return add, look
add1, look1 = counter()
add1(5)
add2, look2 = counter()
---
print(add1(1))
print(look1(), look2())
add2(3)
print(look1(), look2())
=== a closure over what the globals were
x = 1
told = []
def make():
    def get():
        told.append(x)
        return x
    return get
get1 = make()
x = 2
---
print(get1(), x, told)
x = 3
print(get1(), told)
=== a closure of a closure
def a(x):
    def b(y):
        def c(z):
            return [x, y, z]
        return c
    return b
f = a([1])
g = f(2)
---
print(g(3))
print(f(5)(6))
=== a closure that calls itself
def make():
    go = lambda n: n if n > 5 else go(n + 1)
    return go
g = make()
---
print(g(0))
=== attributes of a function
def f():
    return f.calls
f.calls = 3
---
f.calls += 1
print(f())
=== what a closure prints
def make():
    def say():
        print('in')
        return 'said'
    return say
say1 = make()
def say2():
    print('out')
---
print(say1())
say2()
=== a final answer in a function
fa = final_answer
def done(x):
    fa(x)
---
done(41)
=== a class
class P:
    '''Text.'''
    n = 0
    def __init__(self, v):
        self.v = v
        P.n += 1
    def total(self):
        return self.v + offset
p = P(1)
q = p
---
offset = 10
print(p.total(), P.n, isinstance(p, P))
r = P(5)
q.v = 2
print(P.n, p.v, r.total(), P)
=== subclasses
class A:
    def f(self):
        return 'A' + self.g()
    def g(self):
        return 'a'
class B(A):
    def g(self):
        return 'b'
b = B()
---
print(b.f(), isinstance(b, A), issubclass(B, A))
A.g = lambda self: 'new'
print(A().f())
=== classes that know each other's instances
class A: pass
class B: pass
a = A()
b = B()
A.other = b
B.other = a
c = B()
---
print(A.other is b, c.other is a, type(b) is B, isinstance(b.other, A))
=== a list of a class in a list with another's instance
class P: pass
class R: pass
P.parts = []
q = [P.parts, R()]
---
print(type(q[1]) is R, q[0] is P.parts)
=== a class with hooks that pickle would call
class H:
    def __init__(self):
        self.x = [1]
    def __reduce__(self):
        return boom()
    def __getstate__(self):
        return boom()
    def __setstate__(self, state):
        return boom()
h = H()
---
print(h.x, isinstance(h, H))
=== a class that lists its subclasses
class B:
    made = []
    def __init_subclass__(cls):
        B.made.append(cls)
class A(B): pass
B.first = A()
---
print(len(B.made), B.made[0] is A, type(B.first) is A)
class D(B): pass
print(len(B.made))
=== a closure before its global
def make():
    def get():
        return zzz
    return get
get1 = make()
zzz = 1
---
print(get1())
=== special methods
class V:
    def __init__(self, x):
        self.x = x
    def __eq__(self, o):
        return self.x == o.x
    def __hash__(self):
        return key(self.x)
    def __repr__(self):
        return f'V{self.x}'
    def __add__(self, o):
        return V(self.x + o.x)
    def __len__(self):
        return 3
def key(x):
    return x * prime
prime = 31
s = {V(1), V(2)}
d = {V(3): V(4)}
---
print(V(2) in s, V(9) in s, d[V(3)], V(1) + V(2), len(V(1)))
=== a hash by a name with a similar one
class V:
    def __init__(self, x):
        self.x = x
    def __eq__(self, o):
        return True
    def __hash__(self):
        return self.x * weight
weight1 = 5
aweight = 4
weigh = 9
weight = 7
V.all = {V(1)}
weights = 3
weight2 = 1
---
print(V(1) in V.all)
=== slots
class S:
    __slots__ = ('a', 'b')
s = S()
s.a = [1]
t = s.a
---
t.append(2)
print(s.a)
s.b = 1
print(s.b)
=== a class of a container
class L(list):
    def total(self):
        return sum(self)
class D(dict): pass
l = L([1, 2])
l.note = 'n'
d = D(a=1)
d.x = 5
---
l.append(3)
print(l, l.total(), l.note, d, d.x, isinstance(d, D))
=== exceptions
class E(Exception):
    def __init__(self, code):
        self.code = code
e = E(5)
try:
    raise E(7)
except E as caught:
    kept = caught
try:
    {}['k']
except Exception as e2:
    kept2 = e2
---
print(e.code, kept.code, e, repr(e), e.args)
try:
    raise e
except E as x:
    print(x is e)
print(repr(kept2), kept2 is e2)
=== an enum
from enum import Enum, IntFlag
class C(Enum):
    RED = 1
    BLUE = 'b'
    ALSO = 1
    def low(self):
        return self.name.lower()
class F(IntFlag):
    A = 1
    B = 2
r = C.RED
f = F.A | F.B
---
print(r is C.RED, C('b'), list(C), C.ALSO, r.low(), {C.RED: 1}[r], f, f == 3, F.B in f)
=== an abstract class
from abc import ABC
class A(ABC):
    def f(self):
        return 1
class B(A): pass
b = B()
---
print(b.f(), isinstance(b, A))
=== a data class
from dataclasses import dataclass, field, fields, asdict
class P:
    x: int
    y: int = 2
P = dataclass(P)
p = P(1)
---
print(p, P(1) == p, P(5, 6), [f.name for f in fields(p)], asdict(p))
=== a partial function
from functools import partial
def f(a, b):
    return a, b
g = partial(f, 1)
---
print(g(2))
=== iterators
a = [1, 2, 3]
i = iter(a)
n = next(i)
---
print(next(i))
a.append(4)
print(list(i))
=== no fuzzy names
value = 1
---
print(valu)
=== a picture
from PIL import Image
a = Image.new('RGB', (2, 2), 'red')
---
print(a.getpixel((1, 1)), a.size, a.mode)
""")

CARRIED_WITH_PANDAS = _pairs(r"""
=== arrays
import numpy as np
a = np.arange(6).reshape(2, 3)
b = a
c = np.array([{}, 1], dtype='O')
s = np.float64(2)
---
b[0, 0] = 9
print(a, c, s, np.mean(a), a is b)
=== a view of an array
import numpy as np
a = np.zeros((3, 4))
v = a[1:, ::2]
t = a.T
---
v[0, 1] = 5
print(a)
print(t)
=== a data frame
import pandas as pd
f = pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': pd.to_datetime(['2026-01-01', None])})
g = f
---
g['d'] = f.a * 2
print(f)
print(f.dtypes, f is g)
""")

HOSTILE = _named(r"""
=== reduce
class H:
    def __reduce__(self):
        return boom()
h = H()
=== getattr
class H:
    def __getattr__(this, name):
        return boom()
    def __getattribute__(this, name):
        return boom()
h = H()
=== endless getattr
class H(list):
    def __getattr__(self, name):
        return self.x
h = H()
=== eq and hash
class H:
    def __eq__(self, o):
        return boom()
    def __hash__(self):
        return fine()
def fine():
    return 1
h = {H()}
def fine():
    return boom()
=== exit
class H(list):
    def __reduce__(self):
        raise SystemExit
h = H()
=== interrupt on load
class H(dict):
    def __setitem__(self, k, v):
        raise KeyboardInterrupt
h = H(a=1)
=== getstate
class H(dict):
    def __getstate__(self):
        raise GeneratorExit
h = H(a=1)
=== setstate
class H(dict):
    def __setstate__(self, s):
        raise GeneratorExit
h = H(a=1)
h.x = 1
=== class
class H:
    __class__ = 5
    __dict__ = 7
    __module__ = 8
    __slots__ = ('q',)
h = H()
=== metaclass
class M(type):
    def __getattribute__(cls, n):
        return boom()
    def __eq__(cls, o):
        return boom()
    def __hash__(cls):
        return boom()
h = [M('H', (), {})]
=== module
class H:
    __module__ = 'os'
h = H()
=== descriptor
class D:
    def __get__(self, o, t):
        return boom()
    def __set__(self, o, v):
        return boom()
class H:
    x = D()
h = H()
=== iteration
class H(dict):
    def items(self):
        return boom()
    def __iter__(self):
        return boom()
h = H(a=1)
=== deep
h = []
for i in range(5000):
    h = [h]
=== deep in a class
class H: pass
h = None
for i in range(5000):
    n = H(); n.next = h; h = n
=== huge
h = [0] * 5000000
=== odd attributes
def h():
    return 1
setattr(h, '__source__', 5)
setattr(h, '__ast__', None)
setattr(h, '__name__', 'os')
=== finalizer
class H:
    def __del__(self):
        return boom()
h = 1
""")
