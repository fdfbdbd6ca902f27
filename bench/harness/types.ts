// The vocabulary of the benchmark. A scenario runs the same workload with several libraries; each library runs in a process
// of its own (or several), and the parent drives the processes in short slices, one library at a time.

export type Kind = 'floor' | 'ours' | 'peer'

/** Servers a scenario runs against. "frozen": one of five is stopped after the warm-up. "dead": two of five are killed. */
export type PlaceKind =
  | 'none'
  | 'folder'
  | 'redis'
  | 'redlock'
  | 'redlock-frozen'
  | 'redlock-dead'
  | 'postgres'
  | 'etcd'

/** The part of a place that a library's process is told. */
export interface Address {
  urls: string[]
  folder: string
}

/** Everything a library's process knows about its surroundings. */
export interface Context {
  address: Address
  /** Position of this process among those of its library, from 0. */
  member: number
  /** Differs between libraries, so that no library meets another one's keys. */
  prefix: string
  /** The n-th of 256 names. */
  name(n: number): string
  /** A file of leasehold's build: the working tree's, or that of the commit to compare with. */
  leasehold<T>(file: string): Promise<T>
  /** A package of bench/peers. */
  peer<T>(name: string): T
}

/** Functions of a library's process that the parent may call. Arguments and results travel as JSON. */
export type Calls = Record<string, (args: never) => unknown>

export interface Library {
  kind: Kind
  /** Settings that differ from the library's defaults, for the report. */
  settings?: string
  place?: PlaceKind
  processes?: number
  /** Runs in the library's own process. */
  open(context: Context): Promise<Calls>
}

export interface Metric {
  name: string
  unit: string
  better: 'lower' | 'higher'
  /** No ratios: the figure means something by itself. */
  absolute?: boolean
}

/** One process of a library, as the parent sees it. */
export interface Member {
  call<T>(name: string, args?: object, limitMs?: number): Promise<T>
}

/** A server's own account, read by the parent around a slice. */
export interface Server {
  command(...args: string[]): Promise<unknown>
}

export interface Slice {
  ms: number
  servers: readonly Server[]
}

export type Figures = Record<string, number>

export interface Scenario {
  name: string
  title: string
  place: PlaceKind
  /** The first one is drawn in charts. */
  metrics: [Metric, ...Metric[]]
  /** Figures asked for, as a sentence for the report. */
  target?: string
  /** Measuring time. A scenario always plays at least three rounds. */
  seconds: number
  sliceMs?: number
  /** Shorter slices mean nothing here, whatever `--seconds` says. */
  minSliceMs?: number
  warmUpMs?: number
  processes?: number
  /** Every library has servers of its own: what it keeps doing during the slices of the others is not counted as theirs. */
  ownServers?: boolean
  /** A new process for every slice: what is measured happens once in the life of a process. */
  fresh?: boolean
  /** The library that ratios refer to, if it is not the first one of kind floor. */
  base?: string
  /** Why this scenario cannot run here; undefined if it can. */
  unavailable?(): string | undefined
  libraries: Record<string, Library>
  /** Plays one slice. Default: `run` in all processes at once, for the first metric. */
  drive?(members: readonly Member[], slice: Slice): Promise<Figures>
}
