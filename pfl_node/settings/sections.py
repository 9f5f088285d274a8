"""The settings of everything that runs: daemon, swarm and simulator. Data and its validation only; `load.py` reads
the values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    WithJsonSchema,
)

from pfl_node.settings.compress_type import NONE, Compress
from pfl_node.settings.learning_sections import DataSettings, EvalSettings, TaskSettings, TrainSettings
from pfl_node.settings.network_section import NetworkSettings, RelaySettings
from pfl_node.settings.section import Section
from pfl_node.settings.time_types import DayHours, Duration
from pfl_node.settings.track_section import TrackSettings

Kind = Literal["sign_flip", "scaled", "noise", "alie", "nan", "free_rider", "replay", "label_flip", "lying_scores"]
DEVICES = "auto, cpu, cuda, cuda:N, mps, xpu, or cuda:auto, which spreads the nodes of a run over the GPUs"
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|mps|(cuda|xpu)(:\d+)?|cuda:auto)$"), WithJsonSchema({"words": DEVICES})
]
A_DAY = 86_400  # seconds; gRPC cannot represent arbitrarily long deadlines


class PolicySettings(BaseModel):
    """The algorithm; every other key of the section is a knob of that policy."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "pens"
    """A name of `pfl-node policies`, or `file.py:Class`."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class AggregateSettings(Section):
    """How models are aggregated, for all policies."""

    rule: Literal["mean", "median", "trimmed_mean", "krum", "multi_krum", "clipping"] = "mean"
    """The mean, or a rule that tolerates some bad models. If a policy weights models, mean and clipping use the
    weights. With fragments (`wire.compress`, mosaic), each number is compared among those who sent it, and krum
    and multi_krum are refused."""
    byzantine: NonNegativeInt = 1
    """trimmed_mean, krum, multi_krum, clipping: number of bad models to tolerate, if there are enough models."""
    clip: PositiveFloat | None = None
    """clipping: largest L2 distance of a model from mine; None: the largest except for the farthest 2 * byzantine
    models."""
    claim: Annotated[float, Field(ge=1)] | Literal["auto"] | None = "auto"
    """mean, clipping, feded: if peers report their own weights (their numbers of samples), limit each to this
    multiple of the median; None: no limit; auto: 10, but no limit for fedavg, fedprox and feded."""


class GuardSettings(Section):
    """Protection against bad peers, for all policies. Everything is off except the quarantine, which needs TLS."""

    outliers: PositiveFloat | None = None
    """Refuse a model whose norm, or distance from mine, exceeds the median of the other peers' last models by this
    many MADs (and by half), or that points in the direction opposite to mine; 6 is cautious. None: off."""
    least: PositiveInt = 4
    """Number of other peers with a known last model that are required to call a model an outlier."""
    gate: PositiveFloat | None = None
    """Do not merge a model whose validation loss exceeds mine by more than this share of what I have learned (the
    loss of an untrained model minus mine); 0.5 is a start. None: off. Scores every model."""
    samples: PositiveInt | None = 128
    """Validation samples that the gate scores a model on; None: all."""
    blame: NonNegativeFloat = 0.0
    """Penalty for the sender of a model that the gate refused. Use a value above 0 only if all honest nodes have
    similar data: a model that performs badly on other data is no offence."""
    limit: PositiveFloat = 2.5
    """Penalty at which a peer is quarantined. A NaN counts 1, a model that points away from mine 0.2 to 1, one
    several times as large as others 0.5 to 1, a flood 0.005; a model that is only far from mine 0."""
    half_life: PositiveFloat = 300.0
    """Seconds in which a penalty decays to one half."""
    quarantine: NonNegativeFloat = 60.0
    """Seconds for which a quarantined peer's models are refused; doubled each time, up to 16 times. 0: never."""
    names: bool = False
    """Without TLS: trust the names in messages. Otherwise nobody is quarantined, because anyone could use any
    name."""


class PrivacySettings(Section):
    """Limits on what other nodes can learn about this node's samples. All are off by default; docs/privacy.md
    states the guarantees."""

    oracle: bool = False
    """Answer EvaluateModel with noise and a budget. Exact answers reveal whether a sample is in the training
    data."""
    oracle_epsilon: PositiveFloat = 0.1
    """Epsilon of one answer. The Laplace noise has the scale 1 / (epsilon * samples), relative to the largest
    value."""
    oracle_budget: PositiveFloat = 0.2
    """Epsilon of all answers to one peer, which is refused afterwards. With 0.2, no attack by one peer has an AUC
    above 0.55."""
    oracle_total: PositiveFloat | None = None
    """Epsilon of all answers to all peers together; None: no limit. Without TLS the only effective limit."""
    oracle_clip: PositiveFloat = 3.0
    """Upper bound of a sample's loss; choose it slightly above the logarithm of the number of classes."""
    oracle_tells: Literal["both", "loss", "accuracy"] = "both"
    """Which figures to answer; both share the epsilon, so each has twice the noise. loss: the accuracy is NaN;
    accuracy: the loss is the error rate."""
    dp: bool = False
    """Train with DP-SGD; needs `pip install 'pfl-node[dp]'`. Epsilon is for one sample whose contribution is
    present or nulled; the number of samples is public."""
    dp_noise: PositiveFloat = 1.0
    """Standard deviation of the noise, in units of dp_clip, the sensitivity to nulling a sample; replacing one has
    a sensitivity of 2 * dp_clip."""
    dp_clip: PositiveFloat = 1.0
    """Largest norm of one sample's gradient."""
    dp_delta: float = Field(default=1e-5, gt=0, lt=1)
    """Delta for which the epsilon is reported; well below 1 / samples."""
    dp_epsilon: PositiveFloat | None = None
    """Stop training before the total epsilon would exceed this; None: no limit."""
    dp_correlated: bool = False
    """Each pair of neighbours adds opposite noise, which cancels when they average, so that a node needs less
    noise of its own for the same epsilon (DECOR). Policies `dpsgd`, and `el` with its shared graph; needs
    `train.steps`, SGD, and TLS between daemons. Epsilon then holds against anyone who sees all messages and
    colludes with up to `dp_colluders` of a node's neighbours in a round; the other neighbours must have the same
    settings and keep their noise secret."""
    dp_colluders: NonNegativeInt = 1
    """dp_correlated: neighbours of a node in a round that may collude against it. If more do, epsilon is larger
    than reported: the node's own noise is all that is left. Less than the degree. With a generated dpsgd graph,
    nodes can choose their places: set it to the size of the largest coalition, or give an edge file, or use el."""
    dp_pair_noise: PositiveFloat = 0.7
    """dp_correlated: standard deviation of the noise of a pair, in units of dp_noise. More of it saves independent
    noise, but takes more exchanges to cancel in a sparse graph. The same on all nodes."""


class RoundSettings(Section):
    """When a round begins, and how long it waits for models. Deadlines adapt to the time that each peer needed in
    its last rounds."""

    every: Duration | None = None
    """Rounds begin at most this often, at multiples of it since 1970 (10m: at :00, :10, :20 …), so that all sites
    begin together; the very first one begins at once. None: immediately after one another."""
    hours: DayHours | None = None
    """Rounds begin only in these hours of this machine's local time; at other times the node serves its peers.
    None: always."""
    alone: Literal["wait", "train"] | None = None
    """What a node without peers does: wait for one, or train on its own. None: a daemon with `peer_seed` and
    without `train.patience` waits; others, a swarm and a simulation train."""
    patience: PositiveFloat = 10.0
    """Longest time in seconds that a Gather or Receive waits for models, and the deadline for peers without a
    history."""
    least: PositiveFloat = 2.0
    """Shortest time in seconds that a Gather waits, at most `patience`; equal to `patience`: deadlines do not
    adapt."""
    spread: PositiveFloat = 4.0
    """k: the deadline of a peer is its median plus k times its median deviation, which is at least a quarter of
    the median."""
    quorum: float = Field(default=1.0, gt=0, le=1)
    """Share of the awaited peers that suffices; the round then does not wait for the others."""
    staleness: NonNegativeInt = 1
    """Number of rounds by which a model may be late and still be used, for policies that average with neighbours
    (`el`, `dpsgd`, `deprl`, `facade`, `idca`, `bandit` and their variants); 0: late models are refused."""
    transfer: PositiveFloat = 300.0
    """Longest time in seconds that a node waits for a model that is arriving, or that it sends, as long as the
    transfer makes progress. After that, a model that it sends continues in the background."""
    linger: PositiveFloat = 600.0
    """Seconds that a node whose rounds are done keeps serving peers that make no progress."""


class StartSettings(Section):
    """When the first round begins."""

    peers: NonNegativeInt = 1
    """Wait for this many other nodes…"""
    calm: NonNegativeFloat = 0.0
    """…and until no new node has joined for this many seconds, unless the others have begun…"""
    wait: NonNegativeFloat = 10.0
    """…but at most this many seconds."""


class WireSettings(Section):
    """How models are transferred."""

    encoding: Literal["auto", "fp32", "fp16", "int8"] = "auto"
    """Encoding of numbers. auto: fp32, but int8 with zstd to a peer to which a message would take longer than
    this node's training and 2 s. With int8, predictions are sent as fp16."""
    zstd: NonNegativeInt = Field(default=0, le=19)
    """zstd compression level; 0: off."""
    compress: Compress = NONE
    """Which numbers of a model a message has. none: all. top:0.2: the fifth that has changed most since it was
    last sent to any peer, an eighth of it in turn, so that each peer gets every number in time; the others count
    as unchanged. fragments:16/4: 4 of 16 slices, in turn; fragments:16: one slice. Combine it with encoding and
    zstd. Sent in full: models that peers score, predictions, vectors beside a model, models of sgp and dfedpgp;
    partial models of a policy are sent as they are."""
    chunk: int = Field(default=1 << 20, ge=1 << 12, le=1 << 20)
    """Payload bytes per message of a stream."""
    connect_timeout: float = Field(default=5.0, gt=0, le=A_DAY)
    """Seconds to connect to a peer."""
    min_bandwidth: float = Field(default=1e6, ge=1)
    """Assumed bandwidth of a link in bytes per second until it is measured; determines the deadlines of small
    calls."""
    base_timeout: float = Field(default=10.0, gt=0, le=A_DAY)
    """Seconds that a peer may take to answer, in addition to the transfer of the bytes."""
    concurrency: PositiveInt = 8
    """Models sent at the same time; also the number of concurrent fetches and evaluation requests."""
    slowest: PositiveFloat = 4e3
    """Bytes per second, over 30 seconds; a slower transfer is aborted, at either end."""
    resume: NonNegativeFloat = 120.0
    """Seconds for which the beginning of a transfer that broke off is kept, so that it can continue; 0: it starts
    again."""
    resume_bytes: PositiveInt = 1 << 28
    """Bytes of such beginnings in total, one for each peer; a single one may be larger. A daemon uses at most a
    sixteenth of its memory."""


class ServeSettings(Section):
    """What this node serves to others."""

    evaluate: bool = True
    """EvaluateModel: score a peer's model on this node's training data."""
    head: bool = True
    """GetHead."""
    model: bool = True
    """GetModel."""
    predictions: bool = True
    """GetPredictions."""
    per_peer: PositiveInt = 2
    """Models of one peer in the inbox; also its concurrent evaluations."""
    inbox: PositiveInt = 64
    """Models in the inbox in total."""
    models_per_minute: PositiveInt = 6000
    """SendModel calls of one peer; a newer model for the same round replaces the previous one."""
    scores_per_minute: PositiveInt = 600
    """EvaluateModel calls of one peer."""
    scoring: PositiveFloat = 12.0
    """Seconds per minute that EvaluateModel calls may take from training, half of them for one peer."""
    fetches_per_minute: PositiveInt = 6000
    """GetHead, GetModel and GetPredictions calls of one peer."""
    waiting: PositiveInt = 1 << 30
    """Bytes of waiting models in total, half of it for future rounds; a single model may be larger. A daemon uses
    at most a quarter of its memory, and of the limit of its control group."""
    waiting_per_peer: PositiveInt = 1 << 28
    """Bytes of waiting models of one peer, and of all models being scored; a single model may be larger."""


class MembershipSettings(Section):
    """SWIM with memberlist's LAN values; times are in seconds."""

    transport: Literal["auto", "udp", "grpc"] = "auto"
    """How probes are sent. auto: UDP, with TLS gRPC, which authenticates the sender. Use grpc if UDP is
    blocked."""
    probe_interval: PositiveFloat = 1.0
    """Interval between probes."""
    probe_timeout: PositiveFloat = 0.5
    """Time without an answer after which other nodes are asked to probe."""
    indirect: NonNegativeInt = 3
    """Number of peers asked to probe an unresponsive node."""
    suspicion: PositiveFloat = 4.0
    """Multiplier: a suspicion lasts at least suspicion * log10(n) * probe_interval."""
    gossip_interval: PositiveFloat = 0.2
    """Interval between gossip packets."""
    gossip_fanout: PositiveInt = 3
    """Recipients of each gossip packet."""
    sync_interval: PositiveFloat = 5.0
    """Interval of the full exchange with one peer, and of attempts to reach dead ones."""
    pause: PositiveFloat = 5.0
    """After a pause of the own process longer than this, the node suspends its judgement of others."""


class StoreSettings(Section):
    """What a node writes to disk."""

    checkpoint_every: PositiveInt = 10
    """Rounds."""


class HttpSettings(Section):
    """The web page, its JSON API and `/metrics`; off without `listen`."""

    listen: str | None = None
    """HOST:PORT; port 0: any free one. In a swarm, node i uses port + i."""
    token: str | None = None
    """Token that visitors must present, at least 16 characters; required unless the address is loopback or
    `insecure` is set. Without a token, the page answers only to the names of this machine (127.0.0.1,
    localhost)."""
    every: PositiveFloat = 3.0
    """Seconds between queries of the other nodes, while somebody watches."""


class TlsSettings(Section):
    """Authentication and encryption. By default the files are in the data directory."""

    on: bool | None = None
    """None: on, unless every address is loopback or `insecure` is set."""
    ca: Path | None = None
    """Certificate of the swarm's CA; None: ca.pem; without that file the ids of the allow-list are trusted."""
    cert: Path | None = None
    """This node's certificate; None: cert.pem."""
    key: Path | None = None
    """This node's key; None: key.pem."""
    allow: Path | None = None
    """List of the only trusted ids; None: allow. Without the file, every certificate of the CA is trusted."""
    revoked: Path | None = None
    """List of revoked ids; None: revoked."""
    reload: PositiveFloat = 1.0
    """Seconds between checks of these files; changes need no restart."""


class LogSettings(Section):
    """Log output on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["auto", "console", "json"] = "auto"
    """auto: console on a terminal, otherwise one JSON object per line."""


class SimSettings(Section):
    """Settings of simulations only."""

    membership: Literal["detector", "swim"] = "detector"
    """detector: a failure detector reduced to its delays; swim: the real SWIM, over simulated datagrams."""


class AttackSettings(Section):
    """Make some nodes of a simulation or a swarm malicious, to measure how the others cope. A daemon rejects this
    section."""

    kind: tuple[Kind, ...] = ()
    """One or several of: sign_flip, scaled, noise, alie, nan (send bad models), free_rider (send received models
    untrained), replay (send the model of `lag` rounds ago), label_flip (train on wrong labels), lying_scores (rate
    every model as perfect; with feded, report no novelty)."""
    share: float = Field(default=0.2, ge=0, le=1)
    """Share of malicious nodes, spread over all places by the seed."""
    nodes: tuple[NonNegativeInt, ...] = ()
    """Places of the malicious nodes, instead of a share."""
    strength: PositiveFloat | None = None
    """sign_flip and scaled: the factor (None: 1 and 10); noise: multiple of the model's standard deviation (None:
    1); alie: z (None: computed as in the paper from the numbers of nodes and of malicious ones)."""
    collude: bool = False
    """alie, in a simulation: the malicious nodes share all their knowledge."""
    lag: PositiveInt = 10
    """replay: rounds."""
    start: NonNegativeInt = 0
    """First malicious round."""


class Settings(Section):
    """The whole tree."""

    listen: str = "127.0.0.1:0"
    """HOST:PORT to bind; port 0: any free one."""
    advertise: str | None = None
    """HOST:PORT that others connect to; None: the bound address, or for 0.0.0.0 this machine's address on the
    route to a seed."""
    peer_seed: tuple[str, ...] = ()
    """HOST:PORT of any member, a bootstrap or a node."""
    name: str | None = None
    """Name for humans; None: derived from the id."""
    run: str = "default"
    """Nodes of different runs share the membership but exchange no models."""
    data_dir: Path | None = None
    """Directory for identity, checkpoints, journal and model; None: the first free ./pfl-data/node-N."""
    rounds: PositiveInt | None = None
    """None: until a signal."""
    seed: NonNegativeInt = 0
    """Determines all random decisions; the same on all nodes of a run."""
    device: Device = "auto"
    """auto, cpu, cuda, cuda:N, mps, xpu, or cuda:auto, which spreads the nodes of a run over the GPUs."""
    insecure: bool = False
    """Allow unencrypted connections on addresses that are not loopback."""

    policy: PolicySettings = PolicySettings()
    task: TaskSettings = TaskSettings()
    train: TrainSettings = TrainSettings()
    data: DataSettings = DataSettings()
    aggregate: AggregateSettings = AggregateSettings()
    guard: GuardSettings = GuardSettings()
    privacy: PrivacySettings = PrivacySettings()
    eval: EvalSettings = EvalSettings()
    round: RoundSettings = RoundSettings()
    start: StartSettings = StartSettings()
    wire: WireSettings = WireSettings()
    serve: ServeSettings = ServeSettings()
    network: NetworkSettings = NetworkSettings()
    relay: RelaySettings = RelaySettings()
    membership: MembershipSettings = MembershipSettings()
    store: StoreSettings = StoreSettings()
    track: TrackSettings = TrackSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    log: LogSettings = LogSettings()
    sim: SimSettings = SimSettings()
    attack: AttackSettings = AttackSettings()
