"""Programs that a model might write. Their values survive in another process, or are dropped."""

CARRIED = {
    "numbers": (
        r"""
a, b, c, d = 1, 2.5, True, 1 + 2j
""",
        r"""
print(a, b, c, d, type(c))
""",
    ),
    "texts": (
        r"""
a, b = 'é\n', b'\x00'
""",
        r"""
print(a, b)
""",
    ),
    "containers": (
        r"""
a = [1, (2, {3: {4}})]
""",
        r"""
print(a)
""",
    ),
    "aliases": (
        r"""
a = [1]
b = a
c = {'a': a}
d = [1]
""",
        r"""
a.append(2)
print(b, c, a is b, c['a'] is b, d is a)
""",
    ),
    "a cycle": (
        r"""
a = []
a.append(a)
""",
        r"""
print(a[0] is a, a)
""",
    ),
    "a cycle through two names": (
        r"""
a = {}
b = [a]
a['b'] = b
""",
        r"""
print(a['b'] is b, b[0] is a)
""",
    ),
    "a default dict": (
        r"""
from collections import defaultdict
a = defaultdict(list, {1: [2]})
""",
        r"""
a[5].append(1)
print(a)
""",
    ),
    "a default dict of lambdas": (
        r"""
from collections import defaultdict
a = defaultdict(lambda: [7])
""",
        r"""
print(a[1], list(a))
""",
    ),
    "deque and counter": (
        r"""
from collections import deque, Counter, OrderedDict
a = deque([1], 3)
b = Counter('aab')
c = OrderedDict(x=1)
""",
        r"""
a.append(2)
b.update('b')
print(a, b, c, Counter('z'))
""",
    ),
    "a named tuple": (
        r"""
from collections import namedtuple
P = namedtuple('P', 'x y', defaults=[5])
p = P(1)
""",
        r"""
print(p, p.x, P(3), isinstance(p, P), P, p._replace(x=9))
""",
    ),
    "dates": (
        r"""
import datetime
a = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
b = datetime.timedelta(1)
""",
        r"""
print(a + b, datetime.date(2026, 1, 1))
""",
    ),
    "decimals": (
        r"""
from decimal import Decimal
a = Decimal('1.10')
""",
        r"""
print(a + Decimal(1))
""",
    ),
    "patterns": (
        r"""
import re
a = re.compile('(x+)', re.I)
b = a.match('XX')[1]
""",
        r"""
print(a.findall('axX'), b, a)
""",
    ),
    "modules": (
        r"""
import math as m
import random
import collections.abc as c
""",
        r"""
print(m.pi, random.Random(1).random(), c.Sized)
""",
    ),
    "functions of modules": (
        r"""
from random import randint
from math import gcd as g
from datetime import datetime as d
""",
        r"""
print(randint(3, 3), g(4, 6), d(2026, 1, 1))
""",
    ),
    "aliases of functions and tools": (
        r"""
f = echo
g = len
h = fetch
def double(x):
    return 2 * x
k = double
x = [f, k]
""",
        r"""
print(f(1), g('abc'), h('q'), k(4), x[0](2), x[1](2))
""",
    ),
    "methods of values": (
        r"""
a = [1]
add = a.append
up = 'x'.upper
""",
        r"""
add(2)
print(a, up())
""",
    ),
    "a function and its later globals": (
        r"""
def area(r):
    return scale * r
def twice(r):
    return area(r) * factor()
""",
        r"""
scale = 3
def factor():
    return 2
print(twice(5))
scale = 4
print(twice(5))
""",
    ),
    "a recursive function": (
        r"""
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)
""",
        r"""
print(fact(20))
""",
    ),
    "a recursive lambda": (
        r"""
fib = lambda n: n if n < 2 else fib(n - 1) + fib(n - 2)
""",
        r"""
print(fib(10))
""",
    ),
    "mutual recursion": (
        r"""
def even(n):
    return True if n == 0 else odd(n - 1)
def odd(n):
    return False if n == 0 else even(n - 1)
""",
        r"""
print(even(10), odd(7))
""",
    ),
    "default arguments": (
        r"""
base = 1
def f(a, b=base, *rest, **more):
    return a, b, rest, more
""",
        r"""
print(f(1), f(1, 2, 3, k=4))
base = 9
print(f(1))
""",
    ),
    "decorators": (
        r"""
def loud(g):
    def wrapped(x):
        return g(x) + 1
    return wrapped
def one(x):
    return x
one2 = loud(one)
def two(x):
    return x
""",
        r"""
print(one2(1), two(1))
""",
    ),
    "a closure": (
        r"""
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
""",
        r"""
print(add1(1))
print(look1(), look2())
add2(3)
print(look1(), look2())
""",
    ),
    "a closure over what the globals were": (
        r"""
x = 1
told = []
def make():
    def get():
        told.append(x)
        return x
    return get
get1 = make()
x = 2
""",
        r"""
print(get1(), x, told)
x = 3
print(get1(), told)
""",
    ),
    "a closure of a closure": (
        r"""
def a(x):
    def b(y):
        def c(z):
            return [x, y, z]
        return c
    return b
f = a([1])
g = f(2)
""",
        r"""
print(g(3))
print(f(5)(6))
""",
    ),
    "a closure that calls itself": (
        r"""
def make():
    go = lambda n: n if n > 5 else go(n + 1)
    return go
g = make()
""",
        r"""
print(g(0))
""",
    ),
    "lambdas of a comprehension": (
        r"""
fs = [lambda v: v * i for i in range(3)]
""",
        r"""
i = 100
print([f(2) for f in fs])
""",
    ),
    "attributes of a function": (
        r"""
def f():
    return f.calls
f.calls = 3
""",
        r"""
f.calls += 1
print(f())
""",
    ),
    "what a closure prints": (
        r"""
def make():
    def say():
        print('in')
        return 'said'
    return say
say1 = make()
def say2():
    print('out')
""",
        r"""
print(say1())
say2()
""",
    ),
    "a final answer in a function": (
        r"""
def done(x):
    final_answer(x)
fa = final_answer
""",
        r"""
done(41)
""",
    ),
    "an alias of the final answer": (
        r"""
fa = final_answer
""",
        r"""
fa(42)
""",
    ),
    "a class": (
        r"""
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
""",
        r"""
offset = 10
print(p.total(), P.n, isinstance(p, P))
r = P(5)
q.v = 2
print(P.n, p.v, r.total(), P)
""",
    ),
    "subclasses": (
        r"""
class A:
    def f(self):
        return 'A' + self.g()
    def g(self):
        return 'a'
class B(A):
    def g(self):
        return 'b'
b = B()
""",
        r"""
print(b.f(), isinstance(b, A), issubclass(B, A))
A.g = lambda self: 'new'
print(A().f())
""",
    ),
    "a class under the name of an older one": (
        r"""
class P:
    v = 1
old = P()
pair = [old]
class P(P):
    w = 2
new = P()
""",
        r"""
print(old.v, new.v, new.w, hasattr(old, 'w'), isinstance(old, P), pair[0] is old, isinstance(new, P))
""",
    ),
    "classes that know each other's instances": (
        r"""
class A:
    pass
class B:
    pass
a = A()
b = B()
A.other = b
B.other = a
c = B()
""",
        r"""
print(A.other is b, c.other is a, type(b) is B, isinstance(b.other, A))
""",
    ),
    "a list of a class in a list with another's instance": (
        r"""
class P:
    pass
class R:
    pass
P.parts = []
q = [P.parts, R()]
""",
        r"""
print(type(q[1]) is R, q[0] is P.parts)
""",
    ),
    "a class with hooks that pickle would call": (
        r"""
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
""",
        r"""
print(h.x, isinstance(h, H))
""",
    ),
    "a class that lists its subclasses": (
        r"""
class B:
    made = []
    def __init_subclass__(cls):
        B.made.append(cls)
class A(B):
    pass
B.first = A()
""",
        r"""
print(len(B.made), B.made[0] is A, type(B.first) is A)
class D(B):
    pass
print(len(B.made))
""",
    ),
    "a closure before its global": (
        r"""
def make():
    def get():
        return zzz
    return get
get1 = make()
zzz = 1
""",
        r"""
print(get1())
""",
    ),
    "a class that knows itself": (
        r"""
class T:
    made = []
T.made.append(T())
T.own = T
""",
        r"""
print(T.own is T, type(T.made[0]) is T)
""",
    ),
    "a bound method": (
        r"""
class P:
    def v(self):
        return self.x
p = P()
p.x = 1
m = p.v
""",
        r"""
p.x = 2
print(m())
""",
    ),
    "special methods": (
        r"""
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
""",
        r"""
print(V(2) in s, V(9) in s, d[V(3)], V(1) + V(2), len(V(1)))
""",
    ),
    "a hash by a name with a similar one": (
        r"""
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
""",
        r"""
print(V(1) in V.all)
""",
    ),
    "slots": (
        r"""
class S:
    __slots__ = ('a', 'b')
s = S()
s.a = [1]
t = s.a
""",
        r"""
t.append(2)
print(s.a)
s.b = 1
print(s.b)
""",
    ),
    "a class of a container": (
        r"""
class L(list):
    def total(self):
        return sum(self)
class D(dict):
    pass
l = L([1, 2])
l.note = 'n'
d = D(a=1)
d.x = 5
""",
        r"""
l.append(3)
print(l, l.total(), l.note, d, d.x, isinstance(d, D))
""",
    ),
    "an exception class": (
        r"""
class E(Exception):
    def __init__(self, code):
        self.code = code
e = E(5)
try:
    raise E(7)
except E as caught:
    kept = caught
""",
        r"""
print(e.code, kept.code, e, repr(e), e.args)
try:
    raise e
except E as x:
    print(x is e)
""",
    ),
    "an exception": (
        r"""
try:
    {}['k']
except Exception as e:
    kept = e
""",
        r"""
print(repr(kept), kept is e)
""",
    ),
    "an enum": (
        r"""
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
""",
        r"""
print(r is C.RED, C('b'), list(C), C.ALSO, r.low(), {C.RED: 1}[r], f, f == 3, F.B in f)
""",
    ),
    "an abstract class": (
        r"""
from abc import ABC
class A(ABC):
    def f(self):
        return 1
class B(A):
    pass
b = B()
""",
        r"""
print(b.f(), isinstance(b, A))
""",
    ),
    "a data class": (
        r"""
from dataclasses import dataclass, field, fields, asdict
class P:
    x: int
    y: int = 2
P = dataclass(P)
p = P(1)
""",
        r"""
print(p, P(1) == p, P(5, 6), [f.name for f in fields(p)], asdict(p))
""",
    ),
    "a partial function": (
        r"""
from functools import partial
def f(a, b):
    return a, b
g = partial(f, 1)
""",
        r"""
print(g(2))
""",
    ),
    "iterators": (
        r"""
a = [1, 2, 3]
i = iter(a)
n = next(i)
""",
        r"""
print(next(i))
a.append(4)
print(list(i))
""",
    ),
    "a deleted name": (
        r"""
a = 1
b = 2
del a
""",
        r"""
print(b)
""",
    ),
    "no fuzzy names": (
        r"""
value = 1
""",
        r"""
print(valu)
""",
    ),
    "a picture": (
        r"""
from PIL import Image
a = Image.new('RGB', (2, 2), 'red')
""",
        r"""
print(a.getpixel((1, 1)), a.size, a.mode)
""",
    ),
}

CARRIED_WITH_PANDAS = {
    "arrays": (
        r"""
import numpy as np
a = np.arange(6).reshape(2, 3)
b = a
c = np.array([{}, 1], dtype='O')
s = np.float64(2)
""",
        r"""
b[0, 0] = 9
print(a, c, s, np.mean(a), a is b)
""",
    ),
    "a view of an array": (
        r"""
import numpy as np
a = np.zeros((3, 4))
v = a[1:, ::2]
t = a.T
""",
        r"""
v[0, 1] = 5
print(a)
print(t)
""",
    ),
    "a data frame": (
        r"""
import pandas as pd
f = pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': pd.to_datetime(['2026-01-01', None])})
g = f
""",
        r"""
g['d'] = f.a * 2
print(f)
print(f.dtypes, f is g)
""",
    ),
}

HOSTILE = {
    "reduce": r"""
class H:
    def __reduce__(self):
        return boom()
h = H()
""",
    "reduce of a list": r"""
class H(list):
    def __reduce_ex__(self, protocol):
        return boom()
h = H()
""",
    "getattr": r"""
class H:
    def __getattr__(this, name):
        return boom()
    def __getattribute__(this, name):
        return boom()
h = H()
""",
    "endless getattr": r"""
class H(list):
    def __getattr__(self, name):
        return self.x
h = H()
""",
    "eq and hash": r"""
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
""",
    "exit": r"""
class H(list):
    def __reduce__(self):
        raise SystemExit
h = H()
""",
    "interrupt on load": r"""
class H(dict):
    def __setitem__(self, k, v):
        raise KeyboardInterrupt
h = H(a=1)
""",
    "getstate": r"""
class H(dict):
    def __getstate__(self):
        raise GeneratorExit
h = H(a=1)
""",
    "setstate": r"""
class H(dict):
    def __setstate__(self, s):
        raise GeneratorExit
h = H(a=1)
h.x = 1
""",
    "class": r"""
class H:
    __class__ = 5
    __dict__ = 7
    __module__ = 8
    __slots__ = ('q',)
h = H()
""",
    "metaclass": r"""
class M(type):
    def __getattribute__(cls, n):
        return boom()
    def __eq__(cls, o):
        return boom()
    def __hash__(cls):
        return boom()
h = [M('H', (), {})]
""",
    "module": r"""
class H:
    __module__ = 'os'
h = H()
""",
    "descriptor": r"""
class D:
    def __get__(self, o, t):
        return boom()
    def __set__(self, o, v):
        return boom()
class H:
    x = D()
h = H()
""",
    "iteration": r"""
class H(dict):
    def items(self):
        return boom()
    def __iter__(self):
        return boom()
h = H(a=1)
""",
    "deep": r"""
h = []
for i in range(5000):
    h = [h]
""",
    "deep in a class": r"""
class H:
    pass
h = None
for i in range(5000):
    n = H(); n.next = h; h = n
""",
    "huge": r"""
h = [0] * 5000000
""",
    "odd attributes": r"""
def h():
    return 1
setattr(h, '__source__', 5)
setattr(h, '__ast__', None)
setattr(h, '__name__', 'os')
""",
    "finalizer": r"""
class H:
    def __del__(self):
        return boom()
h = 1
""",
    "init subclass": r"""
class B:
    def __init_subclass__(cls):
        seen.append(1)
seen = []
class H(B):
    pass
h = H()
""",
}
