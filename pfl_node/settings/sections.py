"""One tree of settings for everything that runs: the daemon, a swarm, the simulator. Pure data with its rules.

Where a value comes from (file, environment, flags) is `settings/load.py`'s business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Kind = Literal["sign_flip", "scaled", "noise", "alie", "nan", "free_rider", "replay", "label_flip", "lying_scores"]
A_DAY = 86_400  # seconds; a deadline of more than gRPC can count would be none, or over at once


class Section(BaseModel):
    """A frozen part of the tree; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class PolicySettings(BaseModel):
    """Which algorithm; every other key of the section is a knob of that policy."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    name: str = "pens"
    """A name of `pfl-node policies`, or `file.py:Class`."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TaskSettings(BaseModel):
    """What to learn; every other key of the section is handed to the task's function."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)

    name: str = "digits"
    """A name of `pfl-node tasks`, `file.py:function` or `package.module:function`."""
    index: NonNegativeInt | Literal["slot"] | None = None
    """Which place this is, of `nodes`; slot: N-1 where the data directory's name ends in -N; None: the task
    decides from the node's id."""
    nodes: PositiveInt | None = None
    """How many places there are; None: unknown."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TrainSettings(Section):
    """How a node trains. None: as the task says, else 1 epoch of SGD, lr 0.05, batch 8."""

    optimizer: Literal["sgd", "adam"] | None = None
    """What turns gradients into steps."""
    lr: PositiveFloat | None = None
    """The learning rate."""
    momentum: NonNegativeFloat | None = None
    """Of SGD."""
    weight_decay: NonNegativeFloat | None = None
    """The L2 penalty."""
    batch: PositiveInt | None = None
    """Samples per step."""
    epochs: PositiveFloat | None = None
    """Passes over the data per round (a fraction is allowed)."""
    steps: PositiveInt | None = None
    """Batches per round; given, it wins over epochs."""
    init: Literal["common", "independent"] = "independent"
    """Do all nodes of a run start from the same random model?"""


class AggregateSettings(Section):
    """How models are put together, whatever the policy."""

    rule: Literal["mean", "median", "trimmed_mean", "krum", "multi_krum", "clipping"] = "mean"
    """mean, or one that withstands some bad models. Where a policy weights models, mean and clipping do so."""
    byzantine: NonNegativeInt = 1
    """trimmed_mean, krum, multi_krum, clipping: bad models to withstand, as far as there are enough models."""
    clip: PositiveFloat | None = None
    """clipping: how far from mine a model may be (L2 norm); None: as far as all but the furthest 2 * byzantine."""
    claim: float | None = Field(default=10.0, ge=1)
    """mean, clipping, feded: where weights are what peers say of themselves (their samples), none counts for more
    than so many times their median; None: as they say."""


class GuardSettings(Section):
    """Against bad peers, whatever the policy. All but the quarantine is off, and that needs TLS."""

    outliers: PositiveFloat | None = None
    """Refuse a model whose norm, or distance from mine, is so many MADs (and half) above the median of what other
    peers sent last, or that is turned against mine; 6 is careful. None: off."""
    least: PositiveInt = 4
    """Other peers whose last models must be known before one is called an outlier."""
    gate: PositiveFloat | None = None
    """Do not merge a model whose validation loss is above mine by more than this share of what I have learnt: the
    loss of an untrained model less mine; 0.5 is a start. None: off. Costs a scoring for each model."""
    samples: PositiveInt | None = 128
    """The gate: own validation samples to score a model on; None: all."""
    blame: NonNegativeFloat = 0.0
    """What a model that the gate refused counts against its sender. Above 0 only where all honest nodes have the
    like data: a model that does badly on other data is no offence."""
    limit: PositiveFloat = 2.5
    """What must count against a peer for a quarantine. A NaN is 1, a model turned against mine 0.2 to 1, one
    several times as large as others 0.5 to 1, a flood 0.005; one that is only far from mine 0."""
    half_life: PositiveFloat = 300.0
    """Seconds after which what counts against a peer is half."""
    quarantine: NonNegativeFloat = 60.0
    """Seconds for which its models are refused then; each time twice as long, up to 16 times. 0: never."""
    names: bool = False
    """Without TLS: believe the names in messages. Else nobody gets into quarantine: anybody could use a name."""


class PrivacySettings(Section):
    """What others can find out about my samples. All of it is off; what it promises is in docs/privacy.md."""

    oracle: bool = False
    """Answer EvaluateModel with noise and by a budget. An exact answer tells whether a sample is mine."""
    oracle_epsilon: PositiveFloat = 0.1
    """Of one answer. The noise is Laplace's, of scale 1 / (epsilon * samples) times what is told."""
    oracle_budget: PositiveFloat = 0.2
    """Epsilon of all answers to one peer; then it is refused. With 0.2 no attack by one peer has an AUC above
    0.55."""
    oracle_total: PositiveFloat | None = None
    """Epsilon of all answers to all peers together; None: no limit. Without TLS the only limit that holds."""
    oracle_clip: PositiveFloat = 3.0
    """What the loss of a sample counts at the most; a little above the logarithm of the number of classes."""
    oracle_tells: Literal["both", "loss", "accuracy"] = "both"
    """Which figures; both share the epsilon, so each has twice the noise. loss: the accuracy is not a number then;
    accuracy: the loss is the share of errors then."""
    dp: bool = False
    """Train with DP-SGD; needs `pip install 'pfl-node[dp]'`."""
    dp_noise: PositiveFloat = 1.0
    """Standard deviation of the noise, in units of dp_clip."""
    dp_clip: PositiveFloat = 1.0
    """The largest norm of one sample's gradient."""
    dp_delta: float = Field(default=1e-5, gt=0, lt=1)
    """At which the epsilon is told; well below 1 / samples."""
    dp_epsilon: PositiveFloat | None = None
    """Train no more when the next training would spend more than this in all; None: no limit."""


class EvalSettings(Section):
    """How often the personal model is measured on the validation and test data."""

    every: PositiveInt = 1
    """Rounds."""
    on: tuple[Literal["val", "test"], ...] = ("val", "test")
    """Which data; leave out what nobody looks at, as measuring takes time."""


class RoundSettings(Section):
    """What a round may take. How long it waits for a peer adapts to what that peer needed in the last rounds."""

    patience: PositiveFloat = 10.0
    """Seconds that a Gather or Receive waits for models at most, and for peers of whom little is known."""
    least: PositiveFloat = 2.0
    """Seconds that a Gather waits at least, unless `patience` is less; as long as `patience`: nothing adapts."""
    spread: PositiveFloat = 4.0
    """k: a peer may need its median and k times its median deviation, which counts as a quarter of the median at
    least."""
    quorum: float = Field(default=1.0, gt=0, le=1)
    """The share of the peers waited for that is enough; then the others are not waited for any longer."""
    staleness: NonNegativeInt = 1
    """Rounds that a model may be late and still be used, by policies that average with neighbours (`el`, `dpsgd`,
    `deprl`, `facade`, `idca`); 0: what comes late is refused."""
    linger: PositiveFloat = 600.0
    """Seconds that a node whose rounds are done stays for others that get no further."""


class StartSettings(Section):
    """When the first round begins."""

    peers: NonNegativeInt = 1
    """Wait for so many other nodes…"""
    calm: NonNegativeFloat = 0.0
    """…and until nobody new has come for so many seconds, unless the others have begun…"""
    wait: NonNegativeFloat = 10.0
    """…but no longer than so many seconds."""


class WireSettings(Section):
    """How models travel."""

    encoding: Literal["fp32", "fp16", "int8"] = "fp32"
    """What a number becomes on the wire. Predictions never go as int8, but as fp16 then."""
    zstd: NonNegativeInt = Field(default=0, le=19)
    """Compression level; 0: off."""
    chunk: int = Field(default=1 << 20, ge=1 << 12, le=1 << 20)
    """Bytes of payload in a message of a stream."""
    connect_timeout: float = Field(default=5.0, gt=0, le=A_DAY)
    """Seconds to reach a peer."""
    min_bandwidth: float = Field(default=1e6, ge=1)
    """Bytes per second that a link is believed to manage before it was measured: sets the deadlines."""
    base_timeout: float = Field(default=10.0, gt=0, le=A_DAY)
    """Seconds that every call may take besides the bytes it moves."""
    concurrency: PositiveInt = 8
    """Models sent at the same time; also models fetched and scores asked for at the same time."""
    slowest: PositiveFloat = 16e3
    """Bytes per second; a stream of a caller that needs longer than at this pace is ended."""


class ServeSettings(Section):
    """What this node does for others."""

    evaluate: bool = True
    """EvaluateModel: score their model on my training data."""
    head: bool = True
    """GetHead."""
    model: bool = True
    """GetModel."""
    predictions: bool = True
    """GetPredictions."""
    per_peer: PositiveInt = 2
    """Models of one peer that may wait in the inbox; also its evaluations under way."""
    inbox: PositiveInt = 64
    """Models that may wait in the inbox in all."""
    models_per_minute: PositiveInt = 6000
    """SendModel calls of one peer; a newer model for the same round takes the place of the one before."""
    scores_per_minute: PositiveInt = 600
    """EvaluateModel calls of one peer."""
    scoring: PositiveFloat = 30.0
    """Seconds of a minute that EvaluateModel calls of one peer may take of the training."""
    fetches_per_minute: PositiveInt = 6000
    """GetHead, GetModel and GetPredictions calls of one peer."""
    waiting: PositiveInt = 1 << 30
    """Bytes of models that may wait in all, half of it for coming rounds, and as many of those that are scored; a
    single one may be larger."""
    waiting_per_peer: PositiveInt = 1 << 28
    """Bytes of models of one peer that may wait; a single one may be larger."""


class MembershipSettings(Section):
    """SWIM with memberlist's LAN values; all in seconds."""

    transport: Literal["auto", "udp", "grpc"] = "auto"
    """How probes travel. auto: udp, with TLS grpc, which proves who sent them; grpc where UDP is blocked, too."""
    probe_interval: PositiveFloat = 1.0
    """Between two probes of a node."""
    probe_timeout: PositiveFloat = 0.5
    """Without an answer for so long, others are asked to probe."""
    indirect: NonNegativeInt = 3
    """Peers asked to probe a silent one."""
    suspicion: PositiveFloat = 4.0
    """Multiplier: suspicion lasts suspicion * log10(n) * probe_interval, at least."""
    gossip_interval: PositiveFloat = 0.2
    """Between two packets of news."""
    gossip_fanout: PositiveInt = 3
    """Peers that such a packet goes to."""
    sync_interval: PositiveFloat = 5.0
    """Full exchange with one peer, and a new try for dead ones."""
    pause: PositiveFloat = 5.0
    """After a pause of its own longer than this a node judges nobody for a while."""


class StoreSettings(Section):
    """What a node writes."""

    checkpoint_every: PositiveInt = 10
    """Rounds."""


class HttpSettings(Section):
    """The page, its JSON and `/metrics`. None of it is there without `listen`."""

    listen: str | None = None
    """HOST:PORT; port 0: any free one. In a swarm node i takes port + i."""
    token: str | None = None
    """What a visitor must show, at least 16 characters; needed where the address is not loopback."""
    every: PositiveFloat = 3.0
    """Seconds between two looks at the other nodes, while somebody watches."""


class TlsSettings(Section):
    """Who is who, and that nobody listens in. What is not named here is in the data directory."""

    on: bool | None = None
    """None: on, unless every address is loopback or `insecure` is set."""
    ca: Path | None = None
    """Certificate of the swarm's CA; None: ca.pem, and where there is none the ids of the allow-list count."""
    cert: Path | None = None
    """This node's certificate; None: cert.pem."""
    key: Path | None = None
    """This node's key; None: key.pem."""
    allow: Path | None = None
    """List of the only ids to talk to; None: allow. Without the file, with a CA: everybody it vouches for."""
    revoked: Path | None = None
    """List of ids not to talk to; None: revoked."""
    reload: PositiveFloat = 1.0
    """Seconds between two looks at these files: changes need no restart."""


class LogSettings(Section):
    """What a node says on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is said."""
    format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, else one JSON object per line."""


class AttackSettings(Section):
    """Some nodes of a simulation or a swarm are malicious, to see what the others bear. A daemon refuses it."""

    kind: tuple[Kind, ...] = ()
    """What they do, one or several of: sign_flip, scaled, noise, alie, nan (they send bad models), free_rider
    (what came to them, untrained), replay (their model of `lag` rounds ago), label_flip (trained on wrong labels),
    lying_scores (every model they are asked about is perfect; with feded, no sample is strange to them)."""
    share: float = Field(default=0.2, ge=0, le=1)
    """Of the nodes, spread over all places by the seed."""
    nodes: tuple[NonNegativeInt, ...] = ()
    """Which places, instead."""
    strength: PositiveFloat | None = None
    """sign_flip and scaled: the factor (None: 1 and 10); noise: times the spread of the model (None: 1); alie: z
    (None: as its paper computes it from the numbers of nodes and of bad ones)."""
    collude: bool = False
    """alie, in a simulation: the bad nodes tell each other all they know."""
    lag: PositiveInt = 10
    """replay: rounds."""
    start: NonNegativeInt = 0
    """The first bad round."""


class Settings(Section):
    """The whole tree."""

    listen: str = "127.0.0.1:0"
    """HOST:PORT to bind; port 0: any free one."""
    advertise: str | None = None
    """HOST:PORT that others dial; None: the bound one, for 0.0.0.0 this machine's on the way to a seed."""
    peer_seed: tuple[str, ...] = ()
    """HOST:PORT of any member, a bootstrap or a node."""
    name: str | None = None
    """A word for humans; None: made from the id."""
    run: str = "default"
    """Nodes of different runs share the membership but no models."""
    data_dir: Path | None = None
    """Where the node keeps its identity, checkpoint, journal and model; None: the first free ./pfl-data/node-N."""
    rounds: PositiveInt | None = None
    """None: until a signal comes."""
    seed: NonNegativeInt = 0
    """Decides everything that is left to chance; the same on all nodes of a run."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto, cpu, cuda or cuda:N."""
    insecure: bool = False
    """Plain connections on an address that is not loopback."""

    policy: PolicySettings = PolicySettings()
    task: TaskSettings = TaskSettings()
    train: TrainSettings = TrainSettings()
    aggregate: AggregateSettings = AggregateSettings()
    guard: GuardSettings = GuardSettings()
    privacy: PrivacySettings = PrivacySettings()
    eval: EvalSettings = EvalSettings()
    round: RoundSettings = RoundSettings()
    start: StartSettings = StartSettings()
    wire: WireSettings = WireSettings()
    serve: ServeSettings = ServeSettings()
    membership: MembershipSettings = MembershipSettings()
    store: StoreSettings = StoreSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    log: LogSettings = LogSettings()
    attack: AttackSettings = AttackSettings()
