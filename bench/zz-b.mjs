var __defProp = Object.defineProperty
var __getOwnPropNames = Object.getOwnPropertyNames
var __esm = (fn, res, err) =>
  function __init() {
    if (err) throw err[0]
    try {
      return fn && (res = (0, fn[__getOwnPropNames(fn)[0]])((fn = 0))), res
    } catch (e) {
      throw ((err = [e]), e)
    }
  }
var __export = (target, all) => {
  for (var name in all) __defProp(target, name, { get: all[name], enumerable: true })
}

// src/errors.ts
function show(value) {
  if (typeof value === 'string') {
    const shown = value.length > 60 ? `${value.slice(0, 60)}\u2026` : value
    return `${JSON.stringify(shown)}${value.length > 60 ? ` (${value.length} characters)` : ''}`
  }
  if (typeof value === 'function') return 'a function'
  if (typeof value === 'object' && value !== null) {
    try {
      const text2 = JSON.stringify(value)
      return text2.length > 60 ? `${text2.slice(0, 60)}\u2026` : text2
    } catch {
      return 'an object'
    }
  }
  return typeof value === 'bigint' ? `${value}n` : String(value)
}
var LeaseholdError,
  LockTimeoutError,
  LockLostError,
  explain,
  StoreUnavailableError,
  UnsupportedError,
  InvalidOptionError,
  SelfDeadlockError,
  ClosedError
var init_errors = __esm({
  'src/errors.ts'() {
    'use strict'
    LeaseholdError = class extends Error {
      /** Stable, for programs: `LOCK_TIMEOUT`, `STORE_UNAVAILABLE`, … */
      code
      constructor(code, message, options) {
        super(message, options)
        this.name = new.target.name
        this.code = code
      }
    }
    LockTimeoutError = class extends LeaseholdError {
      /** The name asked for. */
      lock
      /** How long was waited. */
      waitedMs
      /** Who was in the way when last heard of. */
      heldBy
      constructor(lock, facts2) {
        const waited = `after ${Math.round(facts2.waitedMs)} ms`
        super(
          'LOCK_TIMEOUT',
          `"${lock}" stayed busy: gave up ${waited}${facts2.heldBy ? `, held by ${facts2.heldBy}` : ''}`,
        )
        this.lock = lock
        this.waitedMs = facts2.waitedMs
        this.heldBy = facts2.heldBy
      }
    }
    LockLostError = class extends LeaseholdError {
      lock
      why
      constructor(lock, why, options) {
        super('LOCK_LOST', `"${lock}" is no longer held: ${explain[why]}`, options)
        this.lock = lock
        this.why = why
      }
    }
    explain = {
      expired: 'its time passed without a renewal that worked',
      gone: 'the store says that it is not ours any more',
      revoked: 'it was taken away by force',
      session: 'the connection it depended on broke',
      'max-hold': 'it was held for as long as maxHold allows',
      released: 'it has been released',
    }
    StoreUnavailableError = class extends LeaseholdError {
      constructor(message, options) {
        super('STORE_UNAVAILABLE', message, options)
      }
    }
    UnsupportedError = class extends LeaseholdError {
      constructor(message) {
        super('UNSUPPORTED', message)
      }
    }
    InvalidOptionError = class extends LeaseholdError {
      /** Which option. */
      option
      /** What it was. */
      value
      constructor(option, value, takes) {
        super('INVALID_OPTION', `${option} takes ${takes}; it was ${show(value)}`)
        this.option = option
        this.value = value
      }
    }
    SelfDeadlockError = class extends LeaseholdError {
      lock
      constructor(lock) {
        super(
          'SELF_DEADLOCK',
          `"${lock}" is already held by the callback that asks for it, which would wait for itself; pass { nested: 'wait' } if this is detached work`,
        )
        this.lock = lock
      }
    }
    ClosedError = class extends LeaseholdError {
      constructor(message) {
        super('CLOSED', message)
      }
    }
  },
})

// src/kit/duration.ts
function milliseconds(option, value, range = {}) {
  const { min = 0, max = LONGEST } = range
  const ms = typeof value === 'number' ? value : typeof value === 'string' ? parse(value) : Number.NaN
  if (ms >= min && ms <= max) return ms
  const bounds =
    max < LONGEST ? `from ${formatDuration(min)} to ${formatDuration(max)}` : `of at least ${formatDuration(min)}`
  const also = range.or ? `, or ${range.or}` : ''
  throw new InvalidOptionError(
    option,
    value,
    `a duration ${bounds} (milliseconds, or like '250ms', '30s', '5m')${also}`,
  )
}
function parse(text2) {
  const match = /^(\d{1,15}(?:\.\d{1,6})?)(ms|s|m|h|d)$/.exec(text2)
  return match ? Number(match[1]) * UNITS[match[2]] : Number.NaN
}
function formatDuration(ms) {
  for (const [unit, size] of Object.entries(UNITS).toReversed()) {
    if (ms >= size && (unit === 'ms' || ms / size >= 1)) {
      const count = ms / size
      return `${Number.isInteger(count) ? count : count.toFixed(count < 10 ? 1 : 0)}${unit}`
    }
  }
  return `${ms}ms`
}
var UNITS, LONGEST
var init_duration = __esm({
  'src/kit/duration.ts'() {
    'use strict'
    init_errors()
    UNITS = { ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 }
    LONGEST = 100 * 366 * 864e5
  },
})

// src/store.ts
var ALL
var init_store = __esm({
  'src/store.ts'() {
    'use strict'
    ALL = 2 ** 31 - 1
  },
})

// src/kit/world.ts
import { randomBytes } from 'node:crypto'
function now(exact) {
  const monotonic = performance.now()
  if (exact || monotonic >= comparedAt + 1) compare(monotonic)
  return monotonic + ahead
}
function compare(monotonic) {
  comparedAt = monotonic
  const lead = Date.now() - monotonic
  if (lead > ahead + 1.5) ahead = lead
}
var LONGEST_TIMER, ahead, comparedAt, realWorld
var init_world = __esm({
  'src/kit/world.ts'() {
    'use strict'
    LONGEST_TIMER = 2 ** 31 - 1
    ahead = Number.NEGATIVE_INFINITY
    comparedAt = Number.NEGATIVE_INFINITY
    realWorld = {
      now,
      date: Date.now,
      after(ms, run2, keepAlive = false) {
        const timer = setTimeout(run2, Math.min(Math.max(ms, 0), LONGEST_TIMER))
        if (!keepAlive) timer.unref()
        return () => clearTimeout(timer)
      },
      random: Math.random,
      bytes: () => randomBytes(16),
    }
  },
})

// src/kit/rate.ts
function takeFrom(meters, limits, cost, now2) {
  const before = limits.map((limit, i) => judge(meters[i], limit, cost, now2))
  const allowed = before.every((verdict) => verdict.retryAfterMs === 0)
  if (allowed) for (const [i, limit] of limits.entries()) charge(meters[i], limit, cost, now2)
  const after = allowed ? limits.map((limit, i) => judge(meters[i], limit, 0, now2)) : before
  return {
    allowed,
    remaining: Math.min(...after.map((verdict) => verdict.remaining)),
    retryAfterMs: Math.max(...before.map((verdict) => verdict.retryAfterMs)),
    resetMs: Math.max(...after.map((verdict) => verdict.resetMs)),
  }
}
function judge(meter, limit, cost, now2) {
  return limit.algorithm === 'token-bucket'
    ? judgeBucket(meter, limit, cost, now2)
    : judgeWindow(meter, limit, cost, now2)
}
function judgeBucket(meter, { limit, perMs, burst }, cost, now2) {
  const perToken = perMs / limit
  const missing = Math.max(meter.fullAt - now2, 0)
  const free = burst - missing / perToken
  const short = (cost - free) * perToken
  return {
    remaining: Math.max(Math.floor(free + HAIR), 0),
    retryAfterMs: cost > burst || limit === 0 ? Number.POSITIVE_INFINITY : short > HAIR ? short : 0,
    resetMs: missing,
  }
}
function judgeWindow(meter, { limit, perMs }, cost, now2) {
  const counting = meter.taken.filter((entry) => entry.at + perMs > now2)
  meter.taken = counting
  let free = limit - counting.reduce((sum, entry) => sum + entry.cost, 0)
  const remaining2 = Math.max(Math.floor(free + HAIR), 0)
  const resetMs = counting.length === 0 ? 0 : counting.at(-1).at + perMs - now2
  if (cost > limit) return { remaining: remaining2, retryAfterMs: Number.POSITIVE_INFINITY, resetMs }
  let retryAfterMs = 0
  for (const entry of counting) {
    if (cost <= free + HAIR) break
    free += entry.cost
    retryAfterMs = entry.at + perMs - now2
  }
  return { remaining: remaining2, retryAfterMs, resetMs }
}
function charge(meter, { algorithm, limit, perMs }, cost, now2) {
  if (algorithm === 'token-bucket') meter.fullAt = Math.max(meter.fullAt, now2) + (cost * perMs) / limit
  else if (cost > 0) meter.taken.push({ at: now2, cost })
}
function idleAt(meters, limits) {
  return Math.max(
    ...limits.map((limit, i) => {
      const meter = meters[i]
      if (limit.algorithm === 'token-bucket') return meter.fullAt
      return meter.taken.length === 0 ? 0 : meter.taken.at(-1).at + limit.perMs
    }),
  )
}
var emptyMeter, HAIR
var init_rate = __esm({
  'src/kit/rate.ts'() {
    'use strict'
    emptyMeter = () => ({ fullAt: 0, taken: [] })
    HAIR = 1e-6
  },
})

// src/stores/redis/signals.ts
var Signals
var init_signals = __esm({
  'src/stores/redis/signals.ts'() {
    'use strict'
    Signals = class {
      /** The last error the client told of since it was last ready. */
      lastError
      #turns = /* @__PURE__ */ new Set()
      #doubts = /* @__PURE__ */ new Set()
      #shocks = /* @__PURE__ */ new Set()
      #undo = []
      on(emitter, event, listener) {
        emitter.on(event, listener)
        this.#undo.push(() => emitter.off(event, listener))
      }
      onTurn(listener) {
        this.#turns.add(listener)
        return () => this.#turns.delete(listener)
      }
      onDoubt(listener) {
        this.#doubts.add(listener)
        return () => this.#doubts.delete(listener)
      }
      onShock(listener) {
        this.#shocks.add(listener)
        return () => this.#shocks.delete(listener)
      }
      shock() {
        for (const listener of [...this.#shocks]) listener()
      }
      turn() {
        for (const listener of [...this.#turns]) listener()
      }
      doubt() {
        for (const listener of [...this.#doubts]) listener()
      }
      detach() {
        for (const undo of this.#undo) undo()
        this.#undo = []
        this.#turns.clear()
        this.#doubts.clear()
        this.#shocks.clear()
      }
    }
  },
})

// src/stores/redis/ioredis.ts
function isIoRedis(client) {
  const { status, evalsha, isCluster } = client
  return typeof status === 'string' && typeof evalsha === 'function' && (isCluster === true || 'duplicate' in client)
}
function ioredisAdapter(client) {
  return 'isCluster' in client && client.isCluster ? new ClusterAdapter(client) : new SingleAdapter(client)
}
var ignore, IoRedisAdapter, SingleAdapter, ClusterAdapter, IoRedisEar
var init_ioredis = __esm({
  'src/stores/redis/ioredis.ts'() {
    'use strict'
    init_signals()
    ignore = () => {}
    IoRedisAdapter = class extends Signals {
      keyPrefix
      client
      constructor(client) {
        super()
        this.client = client
        const { keyPrefix } = client.options
        this.keyPrefix = keyPrefix === void 0 || keyPrefix === null ? '' : String(keyPrefix)
        this.on(client, 'ready', () => {
          this.lastError = void 0
          this.turn()
        })
        this.on(client, 'end', () => this.turn())
        this.on(client, 'error', (error) => {
          this.lastError = error
        })
      }
      ready() {
        return this.client.status === 'ready'
      }
      closed() {
        return this.client.status === 'end'
      }
      trouble() {
        return this.lastError ?? `the client is ${this.client.status}`
      }
      wake() {
        if (this.client.status === 'wait') this.client.connect().catch(ignore)
      }
      evalsha(sha, keys, args) {
        return this.client.evalsha(sha, keys.length, ...this.#unprefixed(keys), ...args)
      }
      eval(source, keys, args) {
        return this.client.eval(source, keys.length, ...this.#unprefixed(keys), ...args)
      }
      /** The client puts its prefix before keys by itself. */
      #unprefixed(keys) {
        const { length } = this.keyPrefix
        return length === 0 ? keys : keys.map((key) => key.slice(length))
      }
    }
    SingleAdapter = class extends IoRedisAdapter {
      cluster = false
      constructor(client) {
        super(client)
        let wasReady = this.ready()
        this.on(client, 'ready', () => {
          if (wasReady) this.doubt()
          wasReady = true
        })
      }
      async masters() {
        return [{ send: (command, ...args) => this.client.call(command, ...args) }]
      }
      addressOf() {
        return ''
      }
      listen(_address, on) {
        return new IoRedisEar(this.client, {}, on)
      }
    }
    ClusterAdapter = class extends IoRedisAdapter {
      cluster = true
      #masters
      /**
       * Doubt when a node comes back, and when a slot has another master than before: a replica that took over may have
       * missed the last writes.
       */
      constructor(client) {
        super(client)
        for (const node of client.nodes('all')) this.#attend(node)
        this.on(client, '+node', (node) => this.#attend(node))
        this.on(client, '-node', () => this.doubt())
        this.#masters = this.#mastersNow()
        this.on(client, 'refresh', () => {
          const before = this.#masters
          this.#masters = this.#mastersNow()
          if (before !== '' && before !== this.#masters) this.doubt()
        })
      }
      #attend(node) {
        let wasReady = node.status === 'ready'
        this.on(node, 'ready', () => {
          if (wasReady) this.doubt()
          wasReady = true
        })
      }
      /** A fingerprint of who serves what: runs of slots with one master. */
      #mastersNow() {
        let text2 = ''
        let last
        for (const [slot, nodes] of this.client.slots.entries()) {
          if (nodes?.[0] === last) continue
          last = nodes?.[0]
          text2 += `${slot}=${last} `
        }
        return text2
      }
      async masters() {
        return this.client.nodes('master').map((node) => ({
          send: (command, ...args) => node.call(command, ...args),
        }))
      }
      addressOf(slot) {
        return this.client.slots[slot]?.[0]
      }
      listen(address, on) {
        const nodes = this.client.nodes('all')
        const at = address.lastIndexOf(':')
        const [host, port] = [address.slice(0, at), Number(address.slice(at + 1))]
        const known =
          nodes.find(({ options }) => String(options.host) === host && Number(options.port) === port) ?? nodes[0]
        if (!known) throw new Error('no node of the cluster is known')
        return new IoRedisEar(known, { host, port }, on)
      }
    }
    IoRedisEar = class {
      #connection
      #open = true
      constructor(like, override, on) {
        const connection = like.duplicate({
          // Channels are named in full, and their names are not keys to the client.
          keyPrefix: '',
          lazyConnect: true,
          readOnly: false,
          // It is thrown away when it breaks: whoever listens has to be told that something may have been missed.
          retryStrategy: null,
          reconnectOnError: null,
          autoResubscribe: false,
          enableOfflineQueue: true,
          enableReadyCheck: false,
          maxRetriesPerRequest: null,
          monitor: false,
          ...override,
        })
        this.#connection = connection
        const broken = (error) => {
          if (!this.#open) return
          this.close()
          on.broken(error)
        }
        connection.on('error', broken)
        connection.on('connect', () => connection.stream?.unref?.())
        connection.on('close', () => broken(new Error('the connection that listens was closed')))
        connection.on('moved', () => on.moved(void 0))
        connection.on('message', (channel, message) => on.message(channel, message))
        connection.on('smessage', (channel, message) => on.message(channel, message))
        connection.connect().catch(broken)
      }
      async subscribe(channel, sharded) {
        if (sharded && !this.#connection.ssubscribe) throw new Error('this ioredis cannot subscribe within a shard')
        await (sharded ? this.#connection.ssubscribe?.(channel) : this.#connection.subscribe(channel))
      }
      unsubscribe(channel, sharded) {
        const done = sharded ? this.#connection.sunsubscribe?.(channel) : this.#connection.unsubscribe(channel)
        done?.catch(ignore)
      }
      close() {
        this.#open = false
        this.#connection.disconnect()
      }
    }
  },
})

// src/stores/redis/node-redis.ts
function isNodeRedis(client) {
  const { isOpen, sendCommand } = client
  if (typeof isOpen !== 'boolean' || typeof sendCommand !== 'function') return false
  return 'nodeClient' in client || 'getMasterNode' in client || ('duplicate' in client && 'sSubscribe' in client)
}
function nodeRedisAdapter(client) {
  if ('nodeClient' in client) return new ClusterAdapter2(client)
  if ('getMasterNode' in client) return new SentinelAdapter(client)
  return new SingleAdapter2(client)
}
function leave(leaving, channel, unsubscribed) {
  const over = unsubscribed.catch(ignore2).then(() => {
    if (leaving.get(channel) === over) leaving.delete(channel)
  })
  leaving.set(channel, over)
}
var ignore2, NodeRedisAdapter, SingleAdapter2, ClusterAdapter2, SentinelAdapter, NodeRedisEar, SentinelEar
var init_node_redis = __esm({
  'src/stores/redis/node-redis.ts'() {
    'use strict'
    init_signals()
    ignore2 = () => {}
    NodeRedisAdapter = class extends Signals {
      keyPrefix
      client
      constructor(client) {
        super()
        this.client = client
        const prefix = client._keyPrefix
        this.keyPrefix = prefix === void 0 || prefix === null ? '' : String(prefix)
        for (const event of ['ready', 'connect', 'end'])
          this.on(client, event, () => {
            if (this.ready()) this.lastError = void 0
            this.turn()
          })
        this.on(client, 'error', (error) => {
          this.lastError = error
        })
      }
      ready() {
        return this.client.isOpen && this.client.isReady !== false
      }
      closed() {
        return !this.client.isOpen
      }
      trouble() {
        if (!this.client.isOpen) return 'the client is closed, or was never connected: connect() it first'
        return this.lastError ?? 'the client is not connected'
      }
      wake() {}
      evalsha(sha, keys, args) {
        return this.send(keys[0], ['EVALSHA', sha, String(keys.length), ...keys, ...args])
      }
      eval(source, keys, args) {
        return this.send(keys[0], ['EVAL', source, String(keys.length), ...keys, ...args])
      }
    }
    SingleAdapter2 = class extends NodeRedisAdapter {
      cluster = false
      constructor(client) {
        super(client)
        let wasReady = this.ready()
        this.on(client, 'ready', () => {
          if (wasReady) this.doubt()
          wasReady = true
        })
      }
      send(_key, args) {
        return this.client.sendCommand(args)
      }
      async masters() {
        return [{ send: (...args) => this.client.sendCommand(args) }]
      }
      addressOf() {
        return ''
      }
      listen(_address, on) {
        return new NodeRedisEar(Promise.resolve(this.client), on)
      }
    }
    ClusterAdapter2 = class extends NodeRedisAdapter {
      cluster = true
      /** A node that is ready anew may have been away, or have taken over from another. */
      constructor(client) {
        super(client)
        this.on(client, 'node-ready', () => this.doubt())
        this.on(client, 'node-disconnect', () => this.doubt())
        this.on(client, 'node-error', (error) => {
          this.lastError = error
        })
      }
      send(key, args) {
        return this.client.sendCommand(key, false, args)
      }
      async masters() {
        const nodes = await Promise.all(this.client.masters.map((node) => this.client.nodeClient(node)))
        return nodes.map((node) => ({ send: (...args) => node.sendCommand(args) }))
      }
      addressOf(slot) {
        return this.client.slots[slot]?.master.address
      }
      listen(address, on) {
        const node = this.client.masters.find((master) => master.address === address)
        if (!node) throw new Error(`${address} is not a master of the cluster`)
        return new NodeRedisEar(this.client.nodeClient(node), on)
      }
    }
    SentinelAdapter = class extends NodeRedisAdapter {
      cluster = false
      /** It says nothing of a master that it lost and found again, unless made with `passthroughClientErrorEvents`. */
      constructor(client) {
        super(client)
        this.on(client, 'topology-change', (change) => {
          if (change.type === 'MASTER_CHANGE') this.doubt()
        })
        this.on(client, 'error', () => this.shock())
        let wasReady = this.ready()
        this.on(client, 'ready', () => {
          if (wasReady) this.doubt()
          wasReady = true
        })
      }
      send(_key, args) {
        return this.client.sendCommand(false, args)
      }
      async masters() {
        return [{ send: (...args) => this.client.sendCommand(false, args) }]
      }
      addressOf() {
        return ''
      }
      /** The sentinel client opens a connection to the current master for this by itself, and one anew after a failover. */
      listen(_address, on) {
        return new SentinelEar(this.client, on)
      }
    }
    NodeRedisEar = class {
      #on
      #connected
      #leaving = /* @__PURE__ */ new Map()
      #connection
      #open = true
      constructor(like, on) {
        this.#on = on
        this.#connected = this.#connect(like)
        this.#connected.catch((error) => this.#broken(error))
      }
      async #connect(like) {
        const connection = (await like).duplicate()
        this.#connection = connection
        for (const event of ['error', 'reconnecting', 'end'])
          connection.on(event, (error) => this.#broken(error ?? new Error('the connection that listens broke')))
        connection.on('sharded-channel-moved', (channel) => this.#on.moved(String(channel)))
        await connection.connect()
        if (!this.#open) throw new Error('closed')
        connection.unref?.()
        return connection
      }
      #broken(error) {
        if (!this.#open) return
        this.close()
        this.#on.broken(error)
      }
      #heard = (message, channel) => this.#on.message(channel, message)
      async subscribe(channel, sharded) {
        const connection = await this.#connected
        await this.#leaving.get(channel)
        await (sharded ? connection.sSubscribe(channel, this.#heard) : connection.subscribe(channel, this.#heard))
      }
      unsubscribe(channel, sharded) {
        const connection = this.#connection
        if (!this.#open || !connection?.isReady) return
        leave(this.#leaving, channel, sharded ? connection.sUnsubscribe(channel) : connection.unsubscribe(channel))
      }
      close() {
        this.#open = false
        try {
          this.#connection?.destroy()
        } catch {}
      }
    }
    SentinelEar = class {
      #client
      #on
      #channels = /* @__PURE__ */ new Set()
      #leaving = /* @__PURE__ */ new Map()
      #open = true
      constructor(client, on) {
        this.#client = client
        this.#on = on
        client.on('topology-change', this.#changed)
        client.on('reconnecting', this.#broken)
        client.on('error', this.#broken)
      }
      #changed = ({ type }) => {
        if (type === 'MASTER_CHANGE') this.#broken()
      }
      #broken = () => {
        if (!this.#open) return
        this.close()
        this.#on.broken(new Error('the connection to the master was lost, or the sentinels named another'))
      }
      #heard = (message, channel) => {
        if (this.#open) this.#on.message(channel, message)
      }
      async subscribe(channel) {
        this.#channels.add(channel)
        await this.#leaving.get(channel)
        await this.#client.subscribe(channel, this.#heard)
      }
      unsubscribe(channel) {
        this.#channels.delete(channel)
        if (this.#client.isOpen) leave(this.#leaving, channel, this.#client.unsubscribe(channel, this.#heard))
      }
      close() {
        this.#open = false
        this.#client.off('topology-change', this.#changed)
        this.#client.off('reconnecting', this.#broken)
        this.#client.off('error', this.#broken)
        for (const channel of [...this.#channels]) this.unsubscribe(channel)
      }
    }
  },
})

// src/stores/redis/slots.ts
function crc16(bytes) {
  let crc = 0
  for (const byte of bytes) crc = ((crc << 8) & 65535) ^ table[(crc >> 8) ^ byte]
  return crc
}
function hashTag(key) {
  const open = key.indexOf('{')
  const close = open < 0 ? -1 : key.indexOf('}', open)
  return close > open + 1 ? key.slice(open + 1, close) : void 0
}
function slotOf(key) {
  return crc16(Buffer.from(hashTag(key) ?? key)) % SLOTS
}
function tagOf(slot) {
  tags ??= findTags()
  return tags[slot]
}
function findTags() {
  const found = []
  let missing = SLOTS
  for (let i = 0; missing > 0; i++) {
    const tag = i.toString(36)
    const slot = slotOf(tag)
    if (found[slot] !== void 0) continue
    found[slot] = tag
    missing--
  }
  return found
}
var SLOTS, table, tags
var init_slots = __esm({
  'src/stores/redis/slots.ts'() {
    'use strict'
    SLOTS = 16384
    table = new Uint16Array(256).map((_, byte) => {
      let crc = byte << 8
      for (let bit = 0; bit < 8; bit++) crc = crc & 32768 ? (crc << 1) ^ 4129 : crc << 1
      return crc
    })
  },
})

// src/stores/redis/bells.ts
function eventOf(text2) {
  const [type = ''] = text2.split(' ', 1)
  const rest = text2.slice(type.length + 1)
  if (type === 'changed') return { type }
  if (type === 'revoked') return { type, owner: rest }
  const grant = type === 'granted' ? /^(\d+) (\d+) ([^]*)$/.exec(rest) : null
  return grant ? { type: 'granted', token: BigInt(grant[1]), ttlMs: Number(grant[2]), owner: grant[3] } : void 0
}
var IDLE_MS, AUDIT_MS, FIRST_RETRY_MS, Bells2
var init_bells = __esm({
  'src/stores/redis/bells.ts'() {
    'use strict'
    init_slots()
    IDLE_MS = 1e4
    AUDIT_MS = 1e3
    FIRST_RETRY_MS = 50
    Bells2 = class {
      #adapter
      #names
      #timeoutMs
      #onRevoked
      #findOut
      #channels = /* @__PURE__ */ new Map()
      #ears = /* @__PURE__ */ new Map()
      #always
      #auditing
      #idling
      #closed = false
      constructor(adapter, names, options) {
        this.#adapter = adapter
        this.#names = names
        this.#timeoutMs = options.timeoutMs
        this.#always = options.always
        this.#onRevoked = options.onRevoked
        this.#findOut = options.findOut
        if (this.#always) this.#hearRevocations()
      }
      watch(key, listener) {
        const channel = this.#channel(this.#names.bell(key), this.#adapter.cluster)
        const own = (event) => listener(event)
        channel.listeners.add(own)
        this.#hearRevocations()
        clearTimeout(this.#idling)
        this.#audit()
        return {
          ready: channel.live || this.#settled(channel),
          live: () => channel.live && this.#channels.get(channel.name) === channel,
          close: () => {
            if (channel.listeners.delete(own) && channel.listeners.size === 0) this.#forget(channel)
          },
        }
      }
      /** The connection may lead to a server that is no longer the one. On a cluster the address tells; else listen anew. */
      refresh() {
        if (!this.#adapter.cluster) for (const address of [...this.#ears.keys()]) this.#lose(address)
        this.#audit()
      }
      close() {
        this.#closed = true
        clearTimeout(this.#auditing)
        clearTimeout(this.#idling)
        for (const channel of this.#channels.values()) {
          channel.live = false
          for (const settle of channel.settle) settle(false)
        }
        this.#channels.clear()
        for (const ear of this.#ears.values()) ear.close()
        this.#ears.clear()
      }
      #channel(name, sharded) {
        let channel = this.#channels.get(name)
        if (!channel) {
          channel = {
            name,
            sharded,
            slot: this.#adapter.cluster ? slotOf(name) : 0,
            listeners: /* @__PURE__ */ new Set(),
            address: void 0,
            live: false,
            interrupted: false,
            settle: /* @__PURE__ */ new Set(),
          }
          this.#channels.set(name, channel)
        }
        return channel
      }
      /** Costs nothing once there is a connection. */
      #hearRevocations() {
        this.#channel(this.#names.revocations, false)
        this.#audit()
      }
      #settled(channel) {
        return new Promise((resolve) => {
          const settle = (live) => {
            clearTimeout(timer)
            channel.settle.delete(settle)
            resolve(live)
          }
          const timer = setTimeout(() => settle(false), this.#timeoutMs)
          timer.unref()
          channel.settle.add(settle)
        })
      }
      #forget(channel) {
        this.#channels.delete(channel.name)
        if (channel.address !== void 0) this.#ears.get(channel.address)?.unsubscribe(channel.name, channel.sharded)
        channel.live = false
        for (const settle of channel.settle) settle(false)
        if (this.#channels.size > 1 || this.#always) return
        clearTimeout(this.#idling)
        this.#idling = setTimeout(() => {
          for (const ear of this.#ears.values()) ear.close()
          this.#ears.clear()
          this.#channels.clear()
        }, IDLE_MS)
        this.#idling.unref()
      }
      /** Subscribes to whatever is not heard and should be, or is heard in the wrong place. */
      #audit() {
        if (this.#closed) return
        let missing = false
        for (const channel of this.#channels.values()) {
          const anywhere = channel.sharded ? void 0 : this.#ears.keys().next().value
          const address = anywhere ?? this.#adapter.addressOf(channel.slot)
          if (channel.address !== void 0 && channel.sharded && channel.address !== address) this.#mute(channel)
          if (channel.address === void 0 && address !== void 0) this.#subscribe(channel, address)
          missing ||= !channel.live
        }
        if (missing || (this.#adapter.cluster && this.#channels.size > 0)) this.#auditIn(AUDIT_MS)
      }
      #auditIn(ms) {
        clearTimeout(this.#auditing)
        this.#auditing = setTimeout(() => this.#audit(), ms)
        this.#auditing.unref()
      }
      #subscribe(channel, address) {
        let ear
        try {
          ear = this.#ear(address)
        } catch {
          for (const settle of channel.settle) settle(false)
          return
        }
        channel.address = address
        const current = () => this.#channels.get(channel.name) === channel && this.#ears.get(address) === ear
        ear.subscribe(channel.name, channel.sharded).then(
          () => {
            if (!current()) return
            channel.live = true
            for (const settle of channel.settle) settle(true)
            if (channel.interrupted) for (const listener of [...channel.listeners]) listener({ type: 'freed' })
            channel.interrupted = false
          },
          () => {
            if (!current()) return
            this.#mute(channel)
            for (const settle of channel.settle) settle(false)
            this.#relocate(channel)
          },
        )
      }
      /** Whoever served the channel serves it no longer, and the client may not know yet. */
      #relocate(channel) {
        const again = () => this.#auditIn(FIRST_RETRY_MS)
        if (this.#adapter.cluster) this.#findOut(channel.name).then(again, () => this.#auditIn(AUDIT_MS / 2))
        else this.#auditIn(AUDIT_MS / 2)
      }
      #ear(address) {
        let ear = this.#ears.get(address)
        if (!ear) {
          ear = this.#adapter.listen(address, {
            message: (channel, text2) => this.#hear(channel, text2),
            broken: () => {
              if (this.#ears.get(address) !== ear) return
              this.#lose(address)
              this.#auditIn(FIRST_RETRY_MS)
            },
            moved: (name) => {
              for (const channel of this.#channels.values()) {
                if (channel.address !== address || (name !== void 0 && channel.name !== name)) continue
                this.#mute(channel)
                this.#relocate(channel)
              }
            },
          })
          this.#ears.set(address, ear)
        }
        return ear
      }
      #lose(address) {
        const ear = this.#ears.get(address)
        this.#ears.delete(address)
        ear?.close()
        for (const channel of this.#channels.values()) if (channel.address === address) this.#mute(channel)
      }
      #mute(channel) {
        channel.interrupted ||= channel.live
        channel.live = false
        channel.address = void 0
      }
      #hear(name, text2) {
        if (name === this.#names.revocations) return this.#onRevoked()
        const event = eventOf(text2)
        const channel = this.#channels.get(name)
        if (event && channel) for (const listener of [...channel.listeners]) listener(event)
      }
    }
  },
})

// src/stores/redis/adapter.ts
function text(reply) {
  return typeof reply === 'string' ? reply : String(reply)
}
function maybeText(reply) {
  return reply === null || reply === void 0 ? void 0 : text(reply)
}
var init_adapter = __esm({
  'src/stores/redis/adapter.ts'() {
    'use strict'
  },
})

// src/stores/redis/eviction.ts
function facts(info) {
  return new Map(info.split(/\r?\n/).map((line) => line.split(/:(.*)/, 2)))
}
var LOOK_EVERY_MS, NEARLY_FULL, Eviction
var init_eviction = __esm({
  'src/stores/redis/eviction.ts'() {
    'use strict'
    init_errors()
    init_adapter()
    LOOK_EVERY_MS = 1e4
    NEARLY_FULL = 0.95
    Eviction = class {
      #adapter
      #lookedAt = Number.NEGATIVE_INFINITY
      #evicted = /* @__PURE__ */ new Map()
      #reason
      /** This user may not ask: then nothing is known, and nothing refused. */
      #forbidden = false
      constructor(adapter) {
        this.#adapter = adapter
      }
      /** When it wants to be asked again, by our clock. */
      get dueAt() {
        return this.#forbidden ? Number.POSITIVE_INFINITY : this.#lookedAt + LOOK_EVERY_MS
      }
      /** Looks again if it is time to. Throws, or for the very first look rejects, if something speaks against granting. */
      check(now2) {
        if (now2 >= this.dueAt) {
          const first = this.#lookedAt < 0
          this.#lookedAt = now2
          const looked = this.#look()
          if (first) return looked.then(() => this.#judge())
        }
        this.#judge()
        return void 0
      }
      /** Whether granting is refused: then every question has to be judged. */
      get refuses() {
        return this.#reason !== void 0
      }
      #judge() {
        if (this.#reason === void 0) return
        throw new StoreUnavailableError(
          `redis evicts keys and would drop locks without a word: ${this.#reason}; set maxmemory-policy noeviction, keep locks elsewhere, or pass { allowEviction: true }`,
        )
      }
      async #look() {
        try {
          const servers = await this.#adapter.masters()
          const reasons = await Promise.all(
            servers.map(async (server, nth) => this.#evidence(nth, facts(text(await server.send('INFO'))))),
          )
          this.#reason = reasons.find((reason) => reason !== void 0)
        } catch (error) {
          if (error instanceof Error && error.message.startsWith('NOPERM')) this.#forbidden = true
        }
      }
      #evidence(nth, info) {
        const policy = info.get('maxmemory_policy')
        const most = Number(info.get('maxmemory') ?? 0)
        const evicted = Number(info.get('evicted_keys') ?? 0)
        const before = this.#evicted.get(nth) ?? evicted
        this.#evicted.set(nth, evicted)
        if (policy === void 0 || policy === 'noeviction' || !(most > 0)) return void 0
        if (evicted > before) return `${policy}, ${evicted - before} keys since the last look`
        const share = Number(info.get('used_memory') ?? 0) / most
        return share > NEARLY_FULL ? `${policy}, and ${Math.round(share * 100)} % of maxmemory is used` : void 0
      }
    }
  },
})

// src/stores/redis/server-clock.ts
var REUSE_MS, HEAR_EVERY_MS, ServerClock
var init_server_clock = __esm({
  'src/stores/redis/server-clock.ts'() {
    'use strict'
    REUSE_MS = 50
    HEAR_EVERY_MS = 1e3
    ServerClock = class {
      /** What to add to our clock, in microseconds: rather too much than too little. */
      #ahead
      #heardAt = Number.NEGATIVE_INFINITY
      #made = { at: Number.NEGATIVE_INFINITY, text: '' }
      /** Whether it is time to hear it again. */
      isDue(now2) {
        return now2 - this.#heardAt > HEAR_EVERY_MS
      }
      /** `sentAt`: our time before asking. An owner who asks again hears its old token: so only what is more counts. */
      heard(token, sentAt) {
        const ahead2 = token - sentAt * 1e3
        this.#heardAt = sentAt
        if (this.#ahead !== void 0 && ahead2 <= this.#ahead) return
        this.#ahead = ahead2
        this.#made.at = Number.NEGATIVE_INFINITY
      }
      /** Our time as the server's, or up to 50 ms more; nothing while it is unknown. */
      deadline(at) {
        if (this.#ahead === void 0) return ''
        if (at < this.#made.at || at - this.#made.at > REUSE_MS)
          this.#made = { at, text: String(Math.ceil((at + REUSE_MS) * 1e3 + this.#ahead)) }
        return this.#made.text
      }
    }
  },
})

// src/stores/redis/names.ts
function kindOf(key) {
  const end = key.indexOf(':')
  return end < 0 ? key : key.slice(0, end)
}
function literally(prefix) {
  return prefix.replace(/[\\*?[\]^-]/g, '\\$&')
}
var MOST_KNOWN, Names
var init_names = __esm({
  'src/stores/redis/names.ts'() {
    'use strict'
    init_errors()
    init_server_clock()
    init_slots()
    MOST_KNOWN = 1e4
    Names = class {
      /** What stands before every name: the client's own key prefix, and ours. */
      lead
      cluster
      #indexes = /* @__PURE__ */ new Map()
      #known = /* @__PURE__ */ new Map()
      constructor(clientPrefix, prefix, cluster) {
        this.lead = clientPrefix + prefix
        this.cluster = cluster
        if (cluster && hashTag(this.lead) === void 0 && this.lead.includes('{'))
          throw new InvalidOptionError('prefix', this.lead, 'on a cluster only whole hash tags, like {app}')
      }
      /** `lock:order:7`: what everybody else sees, and the key of an exclusive lock in any language. */
      plain(key) {
        return this.of(key).plain
      }
      /** The other way round. */
      key(plain2) {
        return plain2.slice(this.lead.length)
      }
      slot(key) {
        return this.of(key).slot
      }
      /** Lies in the slot of its keys, so that a script may touch it together with any of them. */
      index(key) {
        return this.of(key).index
      }
      /** The kind of the keys in an index that somebody else made. */
      kindOfIndex(name) {
        return name.slice(name.lastIndexOf(':') + 1)
      }
      of(key) {
        let known = this.#known.get(key)
        if (!known) {
          const plain2 = this.lead + key
          const slot = this.cluster ? slotOf(plain2) : 0
          known = { plain: plain2, slot, index: this.#index(kindOf(key), slot) }
          if (this.#known.size >= MOST_KNOWN) this.#known.clear()
          this.#known.set(key, known)
        }
        return known
      }
      #index(kind, slot) {
        const name = `${this.lead}leasehold:held:${this.cluster ? `{${tagOf(slot)}}:` : ''}${kind}`
        let index2 = this.#indexes.get(name)
        if (!index2)
          this.#indexes.set(name, (index2 = { name, kind, clock: new ServerClock(), warmUntil: 0, announcedUntil: 0 }))
        return index2
      }
      /** All indexes that this process has used. */
      get indexes() {
        return this.#indexes.values()
      }
      /** The key that says which indexes there are. */
      get directory() {
        return `${this.lead}leasehold:indexes`
      }
      /** Where everybody hears that a lease was taken away by force. */
      get revocations() {
        return `${this.lead}leasehold:revoked`
      }
      /** The channel on which a key's events are told. */
      bell(key) {
        return `${this.#base(key)}bell`
      }
      /** What is remembered of one limit. A limit that is configured anew begins anew. */
      meter(key, nth, { algorithm, perMs }) {
        return `${this.#base(key)}${nth}:${algorithm}:${perMs}`
      }
      /**
       * The same rule in Lua: `keyOf` in common.lua. Whatever belongs to a key lies in its slot: by the tag it has, by being the
       * tag, or, if a stray brace forbids both, by a tag made for the slot. No name can be mistaken for one of these, since
       * no kind is called `leasehold`.
       */
      #base(key) {
        const plain2 = this.lead + key
        if (hashTag(plain2) !== void 0) return `${this.lead}leasehold:${plain2}:`
        if (this.cluster && plain2.includes('}')) return `${this.lead}leasehold:{${tagOf(slotOf(plain2))}}${plain2}:`
        return `${this.lead}leasehold:{${plain2}}:`
      }
    }
  },
})

// src/stores/redis/foreigners.ts
async function within2(ms, promise) {
  let timer
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, ms)
    timer.unref()
  })
  await Promise.race([promise, late])
  clearTimeout(timer)
}
var STEP, REST, Foreigners
var init_foreigners = __esm({
  'src/stores/redis/foreigners.ts'() {
    'use strict'
    init_adapter()
    init_names()
    STEP = 2e3
    REST = 20
    Foreigners = class {
      #adapter
      #names
      #patienceMs
      /** What the last whole walk found, and what the present one did so far. */
      #known = /* @__PURE__ */ new Set()
      #walking
      #restUntil = 0
      #closed = false
      constructor(adapter, names, patienceMs) {
        this.#adapter = adapter
        this.#names = names
        this.#patienceMs = patienceMs
      }
      /** Keys of kind `lock` under this prefix, ours among them. Waits for a walk, but not for ever: what it finds later counts later. */
      async keys(prefix) {
        if (!prefix.startsWith('lock:') && !'lock:'.startsWith(prefix)) return []
        if (!this.#walking && performance.now() >= this.#restUntil) this.#walk()
        if (this.#walking) await within2(this.#patienceMs, this.#walking)
        return [...this.#known].filter((key) => key.startsWith(prefix))
      }
      close() {
        this.#closed = true
      }
      #walk() {
        const startedAt = performance.now()
        this.#walking = this.#findAll()
          .catch(() => {})
          .finally(() => {
            const endedAt = performance.now()
            this.#walking = void 0
            this.#restUntil = endedAt + (endedAt - startedAt) * REST
          })
      }
      async #findAll() {
        const found = /* @__PURE__ */ new Set()
        const servers = await this.#adapter.masters()
        await Promise.all(servers.map((server) => this.#findOn(server, found)))
        this.#known = found
      }
      async #findOn(server, found) {
        const pattern = `${literally(`${this.#names.lead}lock:`)}*`
        let cursor = '0'
        do {
          const page = await server.send('SCAN', cursor, 'MATCH', pattern, 'COUNT', String(STEP))
          const [next, plains] = page
          for (const plain2 of plains) {
            const key = this.#names.key(text(plain2))
            found.add(key)
            this.#known.add(key)
          }
          cursor = text(next)
        } while (cursor !== '0' && !this.#closed)
      }
    }
  },
})

// src/stores/redis/trouble.ts
function unavailable(error) {
  if (error instanceof LeaseholdError) return error
  const message = error instanceof Error ? error.message || error.name : String(error)
  const meaning = meanings[/^-?([A-Z]+)\b/.exec(message)?.[1] ?? '']
  const reason = meaning ? `${meaning}: ${message}` : `is unavailable: ${message}`
  return new StoreUnavailableError(`redis ${reason}`, { cause: error })
}
function isNoScript(error) {
  return error instanceof Error && error.message.startsWith('NOSCRIPT')
}
var meanings
var init_trouble = __esm({
  'src/stores/redis/trouble.ts'() {
    'use strict'
    init_errors()
    meanings = {
      LOADING: 'is still loading its data',
      READONLY: 'is a read-only replica',
      OOM: 'is out of memory (maxmemory)',
      NOAUTH: 'wants a password',
      WRONGPASS: 'does not accept the password',
      NOPERM: 'does not permit this user what a lock needs',
      MASTERDOWN: 'is a replica without a link to its master',
      CLUSTERDOWN: 'cluster is down',
      TRYAGAIN: 'is moving this slot to another node',
      MISCONF: 'refuses writes because it cannot save them',
      NOREPLICAS: 'refuses writes because it has too few replicas',
      BUSY: 'is busy with a script',
      CROSSSLOT: 'is a cluster, and the client is not a cluster client',
      MOVED: 'is a cluster, and the client is not a cluster client',
      UNBLOCKED: 'changed its role',
    }
  },
})

// src/stores/redis/replies.ts
function answersOf(reply, count) {
  return count === 1 ? [reply] : reply
}
function failureOf(reply) {
  if (typeof reply === 'number' || Array.isArray(reply)) return void 0
  const said = text(reply)
  return said.startsWith('!') ? unavailable(new Error(said.slice(1))) : void 0
}
function tooLate(reply) {
  if (Array.isArray(reply)) return void 0
  const said = text(reply)
  return said.startsWith('@') ? Number(said.slice(1)) : void 0
}
function answerOf(reply, claim2, ttlMs) {
  if (!Array.isArray(reply)) {
    const error = failureOf(reply)
    if (error) return { granted: 'unknown', error }
    return { granted: true, owner: claim2.owner, token: BigInt(text(reply)), ttlMs }
  }
  const [ahead2, owner2, left, token, value, foreign] = reply
  if (owner2 === void 0 || owner2 === null) return { granted: false, ahead: Number(ahead2) }
  const blocker = { owner: text(owner2), ...remaining(left), ...tokenOf(token), ...valueOf(value) }
  if (Number(foreign) === 1) blocker.foreign = true
  return { granted: false, ahead: Number(ahead2), blocker }
}
function renewedOf(reply, ttlMs) {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return Number(reply) === 1 ? { outcome: 'ours', ttlMs } : { outcome: 'gone' }
}
function releasedOf(reply) {
  const error = failureOf(reply)
  if (error) return { outcome: 'unknown', error }
  return { outcome: Number(reply) === 1 ? 'released' : 'gone' }
}
function viewOf(reply, key) {
  const error = failureOf(reply)
  if (error) throw error
  const [holders, waiting, waiters] = reply
  return {
    holders: holders.map((row) => holderOf(row, key, Number(waiting))),
    waiters: waiters.map(([owner2, weight, capacity, waited, value]) => ({
      key,
      owner: text(owner2),
      weight: Number(weight),
      capacity: Number(capacity),
      waitedMs: Number(waited),
      ...valueOf(value),
    })),
  }
}
function holderOf(row, key, waiting) {
  const [owner2, weight, capacity, token, left, held, value, foreign] = row
  const view = {
    key,
    owner: text(owner2),
    weight: Number(weight),
    capacity: Number(capacity),
    ...tokenOf(token),
    ...remaining(left),
    ...valueOf(value),
    waiting,
  }
  if (held !== null && held !== void 0) view.heldMs = Number(held)
  if (Number(foreign) === 1) view.foreign = true
  return view
}
function takenOf(replies, at) {
  const error = failureOf(replies[at])
  if (error) return { granted: 'unknown', error }
  const [allowed, remaining2, retryAfter, reset] = replies.slice(at, at + 4)
  return {
    allowed: allowed === 1,
    remaining: remaining2,
    retryAfterMs: retryAfter < 0 ? Number.POSITIVE_INFINITY : retryAfter / 1e3,
    resetMs: reset / 1e3,
  }
}
function remaining(left) {
  const ms = Number(left)
  return left === null || left === void 0 || ms === -1 ? {} : { ttlMs: Math.max(ms, 0) }
}
function tokenOf(token) {
  const said = maybeText(token)
  return said === void 0 ? {} : { token: BigInt(said) }
}
function valueOf(value) {
  const said = maybeText(value)
  return said === void 0 ? {} : { value: said }
}
var init_replies = __esm({
  'src/stores/redis/replies.ts'() {
    'use strict'
    init_adapter()
    init_trouble()
  },
})

// src/stores/redis/listing.ts
function chunks(items, size) {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size))
}
async function each(items, work) {
  let next = 0
  const worker = async () => {
    while (next < items.length) await work(items[next++])
  }
  await Promise.all(Array.from({ length: Math.min(AT_ONCE, items.length) }, worker))
}
var PAGE, LOOK, AT_ONCE, Listing
var init_listing = __esm({
  'src/stores/redis/listing.ts'() {
    'use strict'
    init_adapter()
    init_names()
    init_replies()
    PAGE = 1e3
    LOOK = 100
    AT_ONCE = 64
    Listing = class {
      #transport
      #names
      #scripts
      #foreigners
      constructor(transport, names, scripts, foreigners) {
        this.#transport = transport
        this.#names = names
        this.#scripts = scripts
        this.#foreigners = foreigners
      }
      async holders(prefix) {
        const [indexes, strangers] = await Promise.all([this.#indexes(prefix), this.#foreigners?.keys(prefix) ?? []])
        const found = /* @__PURE__ */ new Map()
        const note = (index2, plain2) => {
          const known = found.get(index2)
          if (known) known.add(plain2)
          else found.set(index2, /* @__PURE__ */ new Set([plain2]))
        }
        await each(indexes, async (index2) => {
          for (const plain2 of await this.#plains(index2, prefix)) note(index2, plain2)
        })
        for (const key of strangers) note(this.#names.index(key).name, this.#names.lead + key)
        const pages = [...found].flatMap(([index2, plains]) =>
          chunks([...plains], LOOK).map((page) => ({ index: index2, page })),
        )
        const views = []
        await each(pages, async ({ index: index2, page }) => {
          const replies = await this.#transport.run(this.#scripts.look, [index2, ...page], ['holders'])
          for (const [i, reply] of replies.entries()) views.push(...viewOf(reply, this.#names.key(page[i])).holders)
        })
        return views.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
      }
      /** A whole kind in the prefix, on one server, has one index. Else the directory says which there are. */
      async #indexes(prefix) {
        const kind = kindOf(prefix)
        const whole = kind.length < prefix.length
        if (whole && !this.#names.cluster) return [this.#names.index(prefix).name]
        const known = (await this.#transport.run(this.#scripts.list, [this.#names.directory], [])).map(text)
        return known.filter((index2) => {
          const of = this.#names.kindOfIndex(index2)
          return whole ? of === kind : of.startsWith(prefix)
        })
      }
      async #plains(index2, prefix) {
        const pattern = `${literally(this.#names.lead + prefix)}*`
        const plains = []
        let cursor = '0'
        do {
          const args = [cursor, pattern, String(PAGE)]
          const [next, ...page] = await this.#transport.run(this.#scripts.list, [index2], args)
          plains.push(...page.map(text))
          cursor = text(next)
        } while (cursor !== '0')
        return plains
      }
    }
  },
})

// src/stores/redis/lua/embedded.ts
var embedded_exports = {}
__export(embedded_exports, {
  acquire: () => acquire,
  common: () => common,
  index: () => index,
  list: () => list,
  look: () => look,
  quickAcquire: () => quickAcquire,
  quickRelease: () => quickRelease,
  release: () => release,
  renew: () => renew,
  take: () => take,
})
var acquire, common, index, list, look, quickAcquire, quickRelease, release, renew, take
var init_embedded = __esm({
  'src/stores/redis/lua/embedded.ts'() {
    'use strict'
    acquire = `-- acquire.lua   KEYS index, then per claim: plain      ARGV [*][deadline], then per claim: owner ttlMs terms
-- *: all claims or none, and nobody stands in line
-- deadline: by the server's clock in microseconds; after it nothing is done, and the answer is '@' and the time
-- terms: '' or placeMs for an exclusive claim without further wishes; else weight:capacity:placeMs:flags:value
-- placeMs 0 or none: do not stand in line
-- \u2192 per claim: token | [ahead, owner, ttlMs, token, value, foreign] refused | '!error'      (a lone answer is not in a list)

local function claimOf(i)
  local terms = ARGV[3 * i + 1]
  local weight, capacity, place, flags, value = string.match(terms, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  if not weight then weight, capacity, place, flags, value = ALL, ALL, terms == '' and 0 or terms, '', '' end
  return {
    owner = ARGV[3 * i - 1], ttl = tonumber(ARGV[3 * i]),
    weight = tonumber(weight), capacity = tonumber(capacity), place = tonumber(place),
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
    steal = string.find(flags, 's', 1, true) ~= nil,
  }
end

-- Its own grant, if it has one: never in its way, never shortened, with the same token.
local function again(key, claim, held)
  if held.total then
    local entry = call('HGET', key.shares, '=' .. claim.owner)
    if not entry then return nil end
    local ends = math.max(tonumber(call('ZSCORE', key.ends, claim.owner)), now + claim.ttl)
    call('ZADD', key.ends, whole(ends), claim.owner)
    fitExpiry(key)
    return unpackShare(entry).token
  end
  if held.owner ~= claim.owner then return nil end
  local left = call('PTTL', key.plain)
  -- The index was lost and the lease was not: it gets a token anew, larger than the one it had.
  if held.foreign then return grant(key, claim, nil, math.max(left, claim.ttl)) end
  if left < claim.ttl then
    call('PEXPIRE', key.plain, claim.ttl)
    call('PEXPIRE', key.note, claim.ttl)
    keepIndex(micros, micros, claim.ttl)
  end
  return held.token
end

local function stand(key, claim)
  if call('ZADD', key.till, whole(now + claim.place), claim.owner) == 1 then
    local last = tonumber(call('ZRANGE', key.line, -1, -1, 'WITHSCORES')[2]) or 0
    call('ZADD', key.line, whole(math.max(last + 1, micros)), claim.owner)
    local wants = { claim.weight, claim.capacity, whole(claim.ttl), whole(claim.place), flagsOf(claim), claim.value or '' }
    call('HSET', key.places, claim.owner, table.concat(wants, ':'))
    call('HSET', index, key.more, 1)
  end
  local last = call('ZRANGE', key.till, -1, -1, 'WITHSCORES')[2]
  for _, name in ipairs({ key.line, key.till, key.places }) do call('PEXPIREAT', name, last) end
end

local function refuse(key, claim, held)
  local ahead = call('ZRANK', key.line, claim.owner) or call('ZCARD', key.line)
  if not held then return { ahead } end
  if held.total then
    local first = call('ZRANGE', key.ends, 0, 0, 'WITHSCORES')
    local one = unpackShare(call('HGET', key.shares, '=' .. first[1]))
    return { ahead, first[1], whole(first[2] - now), one.token, one.value, 0 }
  end
  local _, value = noteOf(key, held.token)
  return { ahead, held.owner, call('PTTL', key.plain), held.token or false, value, held.foreign and 1 or 0 }
end

-- The rule, for one claim.
local function ask(key, claim)
  local held = standing(key)
  local token = held and again(key, claim, held)
  if token then return token end
  local first = head(key)
  if claim.steal and held then
    evict(key, held)
    held = nil
  end
  if claim.steal or ((not first or first == claim.owner) and fits(held, claim)) then
    if first then leave(key, claim.owner) end
    token = grant(key, claim, held, claim.ttl)
    mark(key)
    return token
  end
  if claim.place > 0 and not atomic then stand(key, claim) end
  return refuse(key, claim, held)
end

-- taken: what earlier claims of the same call want of this key.
local function admits(key, claim, taken)
  local held = standing(key)
  if claim.steal then return true end
  if held and held.owner == claim.owner then return true end
  if held and held.total and call('HEXISTS', key.shares, '=' .. claim.owner) == 1 then return true end
  local first = head(key)
  if first and first ~= claim.owner then return false end
  return fits(held, claim) and (held and held.total or 0) + taken + claim.weight <= claim.capacity
end

-- Leases that ended by themselves stay in the index until somebody looks. Now and then look at some, and at more of them as
-- long as many turn out dead: so what is dead stays a fraction of what is alive.
local function sweep()
  for _ = 1, 64 do
    local dead = 0
    for _, field in ipairs(call('HRANDFIELD', index, 8)) do
      local plain = string.match(field, '^[^%z]+')
      local key = plain and keyOf(plain)
      local alive = not key or call('EXISTS', plain == field and plain or key.line, plain == field and plain or key.note) > 0
      if not alive then dead = dead + call('HDEL', index, field) end
    end
    if dead < 2 then return end
  end
end

local function askAll(from)
  for i = from, #KEYS - 1 do
    local ok, answer = pcall(ask, keyOf(KEYS[i + 1]), claimOf(i))
    answers[i] = ok and answer or failure(answer)
  end
end

local function together()
  local taken, possible = {}, true
  for i = 1, #KEYS - 1 do
    local plain, claim = KEYS[i + 1], claimOf(i)
    possible = possible and admits(keyOf(plain), claim, taken[plain] or 0)
    taken[plain] = (taken[plain] or 0) + claim.weight
  end
  if possible then return askAll(1) end
  for i = 1, #KEYS - 1 do
    local key = keyOf(KEYS[i + 1])
    answers[i] = refuse(key, claimOf(i), standing(key))
  end
end

if atomic then together() else askAll(done + 1) end
if sweeping then pcall(sweep) end
return #answers == 1 and answers[1] or answers
`
    common = `-- common.lua   what the scripts share: each runs as its own file behind this one
--
-- For all keys of one kind (and slot of a cluster), expiring a day after its last use:
--   index        hash     '' \u2192 the last token
--                         plain \u2192 token:content of plain     who was granted it last, and so the token of whoever holds it
--                         plain\\0 \u2192 there is a line, or a note: take the long way
-- Of each key, all in one slot, none without an expiry:
--   plain        string   the owner of an exclusive lease, or SHARED..token while several hold; there while it is held
--   \u2026:note       string   token:flags:value of an exclusive lease that is announced or has a value
--   \u2026:shares     hash     =owner \u2192 weight:capacity:token:flags:value of each who shares; total; marker = content of plain
--   \u2026:ends       zset     who shares, by the time at which their lease ends
--   \u2026:line       zset     who waits, by arrival
--   \u2026:until      zset     who waits, by the time at which their place ends
--   \u2026:places     hash     owner \u2192 weight:capacity:ttlMs:placeMs:flags:value of each who waits
--   \u2026:bell       channel  what happens to the key
-- Flags: a announced, v there is a value, s steal. Times are the server's, in milliseconds.
local call = redis.call
local PUBLISH = 'PUBLISH'
local ALL = 2147483647
local DAY = 86400000
local HOUR = 3600000
local SHARED = 'leasehold:shared:'

local index = KEYS[1]
local lead, rest = string.match(index, '^(.*)leasehold:held:(.*)$')
local tag = string.match(rest, '^{[^}]*}')
local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- The one string that goes back for an item that failed; the others of the batch are answered all the same.
local function failure(reason)
  return '!' .. (type(reason) == 'table' and reason.err or tostring(reason))
end

-- The names of all that belongs to a plain key, in its slot. The same rule in TypeScript: names.ts
local function keyOf(plain)
  local base = lead .. 'leasehold:{' .. plain .. '}:'
  local open = string.find(plain, '{', 1, true)
  local close = open and string.find(plain, '}', open, true)
  if close and close > open + 1 then base = lead .. 'leasehold:' .. plain .. ':'
  elseif tag and string.find(plain, '}', 1, true) then base = lead .. 'leasehold:' .. tag .. plain .. ':' end
  return {
    plain = plain, more = plain .. '\\0', note = base .. 'note', shares = base .. 'shares', ends = base .. 'ends',
    line = base .. 'line', till = base .. 'until', places = base .. 'places', bell = base .. 'bell',
  }
end

local function tell(key, event)
  call(PUBLISH, key.bell, event)
end

-- The index lives longer than every lease in it. Looked at every ten thousand seconds, or for leases of more than half a day.
local function keepIndex(last, token, ttl)
  if ttl < DAY / 2 and math.floor(last / 1e10) == math.floor(token / 1e10) then return end
  local wanted = math.max(DAY, ttl) + 4 * HOUR
  if call('PTTL', index) < wanted then call('PEXPIRE', index, whole(wanted)) end
end

-- Larger than every token before it, also if the clock went back; and by the clock, if the index was lost.
local function mint(ttl)
  local last = tonumber(call('HGET', index, '')) or 0
  local token = math.max(last + 1, micros)
  call('HSET', index, '', whole(token))
  keepIndex(last, token, ttl)
  return whole(token)
end

local function flagsOf(claim)
  return (claim.announce and 'a' or '') .. (claim.value and 'v' or '')
end

-- What the plain key holds, as text; true behind it if it is a key of another type.
local function content(plain)
  local value = redis.pcall('GET', plain)
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '(' .. call('TYPE', plain).ok .. ')', true end
  error(value)
end

-- The note of an exclusive lease: whether it is announced, and its value.
local function noteOf(key, token)
  local of, flags, value = string.match(call('GET', key.note) or '', '^(%d+):(%a*):(.*)$')
  if not token or of ~= token then return false, false end
  return string.find(flags, 'a', 1, true) ~= nil, string.find(flags, 'v', 1, true) and value
end

local function writeNote(key, claim, token, ttl)
  if not claim.announce and not claim.value then return end
  call('SET', key.note, token .. ':' .. flagsOf(claim) .. ':' .. (claim.value or ''), 'PX', ttl)
  call('HSET', index, key.more, 1)
end

local function unpackShare(entry)
  local weight, capacity, token, flags, value = string.match(entry, '^(%d+):(%d+):(%d+):(%a*):(.*)$')
  return {
    weight = tonumber(weight), capacity = capacity, token = token,
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
  }
end

local function clear(key)
  call('DEL', key.plain, key.note, key.shares, key.ends)
  call('HDEL', index, key.plain)
end

-- The plain key and the books of those who share it live exactly as long as the longest share.
local function fitExpiry(key)
  local last = call('ZRANGE', key.ends, -1, -1, 'WITHSCORES')[2]
  for _, name in ipairs({ key.plain, key.shares, key.ends }) do call('PEXPIREAT', name, last) end
end

-- Strikes one share off the books and returns its weight. The caller then clears, or fits the expiry.
local function dropShare(key, owner)
  local held = unpackShare(call('HGET', key.shares, '=' .. owner))
  call('ZREM', key.ends, owner)
  call('HDEL', key.shares, '=' .. owner)
  call('HINCRBY', key.shares, 'total', -held.weight)
  if held.announce then tell(key, 'changed') end
  return held.weight
end

-- Who holds it, after dropping what expired: nil | { owner, token } | { owner, foreign } | { total, marker }
local function standing(key)
  local owner, odd = content(key.plain)
  if not owner then return nil end
  if odd or string.sub(owner, 1, #SHARED) ~= SHARED then
    local token, known = string.match(call('HGET', index, key.plain) or '', '^(%d+):(.*)$')
    if odd or known ~= owner then return { owner = owner, foreign = true } end
    return { owner = owner, token = token }
  end
  local books = call('HMGET', key.shares, 'marker', 'total')
  -- Without the books of this very marker nobody knows who shares: but somebody does, until the marker expires.
  if books[1] ~= owner then return { owner = owner, foreign = true } end
  local total = tonumber(books[2])
  for _, gone in ipairs(call('ZRANGEBYSCORE', key.ends, '-inf', now)) do total = total - dropShare(key, gone) end
  if total > 0 then return { total = total, marker = owner } end
  clear(key)
  return nil
end

local function fits(held, claim)
  if not held then return claim.weight <= claim.capacity end
  return held.total ~= nil and held.total + claim.weight <= claim.capacity
end

local function share(key, claim, held, token, ttl)
  local marker = held and held.marker or SHARED .. token
  if not held then
    call('DEL', key.shares, key.ends)
    call('SET', key.plain, marker, 'PX', ttl)
    call('HSET', index, key.plain, token .. ':' .. marker)
  end
  local entry = table.concat({ claim.weight, claim.capacity, token, flagsOf(claim), claim.value or '' }, ':')
  local total = (held and held.total or 0) + claim.weight
  call('HSET', key.shares, 'marker', marker, 'total', total, '=' .. claim.owner, entry)
  call('ZADD', key.ends, whole(now + ttl), claim.owner)
  fitExpiry(key)
end

-- Grants what nobody is in the way of (any more).
local function grant(key, claim, held, ttl)
  local token = mint(ttl)
  if claim.weight == ALL then
    call('SET', key.plain, claim.owner, 'PX', ttl)
    call('HSET', index, key.plain, token .. ':' .. claim.owner)
    call('DEL', key.note)
    writeNote(key, claim, token, ttl)
  else
    share(key, claim, held, token, ttl)
  end
  if claim.announce then tell(key, 'changed') end
  return token
end

-- Ends every lease of the key, foreign ones too, and tells whoever may need to know.
local function evict(key, held)
  local owners = held.total and call('ZRANGE', key.ends, 0, -1) or { held.owner }
  local announced = noteOf(key, held.token)
  for _, owner in ipairs(owners) do
    if held.total then dropShare(key, owner) end
    tell(key, 'revoked ' .. owner)
    call('PUBLISH', lead .. 'leasehold:revoked', owner)
  end
  clear(key)
  if announced then tell(key, 'changed') end
end

local function leave(key, owner)
  if call('ZREM', key.line, owner) == 0 then return false end
  call('ZREM', key.till, owner)
  call('HDEL', key.places, owner)
  return true
end

-- Drops places whose owners fell silent; returns who is first in line.
local function head(key)
  for _, owner in ipairs(call('ZRANGEBYSCORE', key.till, '-inf', now)) do leave(key, owner) end
  return call('ZRANGE', key.line, 0, 0)[1]
end

local function placeOf(key, owner)
  local weight, capacity, ttl, place, flags, value =
    string.match(call('HGET', key.places, owner), '^(%d+):(%d+):(%d+):(%d+):(%a*):(.*)$')
  return {
    owner = owner, weight = tonumber(weight), capacity = tonumber(capacity), ttl = tonumber(ttl), place = tonumber(place),
    announce = string.find(flags, 'a', 1, true) ~= nil, value = string.find(flags, 'v', 1, true) and value,
  }
end

-- Hands the lease to the head of the line while there is room: no second question, no race with newcomers.
-- Provisionally, for as long as a place lasts: if it is dead, it must not block the others for a whole ttl.
local function serve(key)
  for owner in head, key do
    local claim, held = placeOf(key, owner), standing(key)
    if not fits(held, claim) then break end
    leave(key, owner)
    local ttl = math.min(claim.place, claim.ttl)
    tell(key, 'granted ' .. grant(key, claim, held, ttl) .. ' ' .. whole(ttl) .. ' ' .. owner)
  end
end

-- Whether the next one may take the quick way.
local function mark(key)
  if call('EXISTS', key.line, key.note) > 0 then call('HSET', index, key.more, 1) else call('HDEL', index, key.more) end
end
`
    index = `-- index.lua   KEYS directory      ARGV index forMs      remembers that an index is in use, for those who list
-- \u2192 1
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
call('ZADD', KEYS[1], 'GT', string.format('%.0f', now + ARGV[2]), ARGV[1])
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local last = call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then call('PEXPIREAT', KEYS[1], last) end
return 1
`
    list = `-- list.lua   KEYS directory           \u2192 the indexes in use
--            KEYS index  ARGV cursor pattern count      \u2192 [cursor, plain\u2026], one page of the plain keys that match
--            neither                  \u2192 the server's time in microseconds
if #KEYS == 0 then
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end
if #ARGV == 0 then return redis.call('ZRANGE', KEYS[1], 0, -1) end
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local answer = { page[1] }
for i = 1, #page[2], 2 do
  local field = page[2][i]
  if field ~= '' and string.sub(field, -1) ~= '\\0' then answer[#answer + 1] = field end
end
return answer
`
    look = `-- look.lua   KEYS index, then per key: plain      ARGV holders|all|revoke
-- \u2192 per key: [holders, waiting, waiters] | '!error'
-- holders: [owner, weight, capacity, token, ttlMs, heldMs, value, foreign] each     waiters, unless holders:
-- [owner, weight, capacity, waitedMs, value] each, in order     revoke: ends all leases, and lets the next in

local function holders(key, held)
  if not held then return {} end
  if not held.total then
    local since = held.token and whole(math.max(now - held.token / 1000, 0)) or false
    local _, value = noteOf(key, held.token)
    local ttl = call('PTTL', key.plain)
    return { { held.owner, ALL, ALL, held.token or false, ttl, since, value, held.foreign and 1 or 0 } }
  end
  local rows, ends = {}, call('ZRANGE', key.ends, 0, -1, 'WITHSCORES')
  for i = 1, #ends, 2 do
    local one = unpackShare(call('HGET', key.shares, '=' .. ends[i]))
    local since = whole(math.max(now - one.token / 1000, 0))
    rows[#rows + 1] = { ends[i], one.weight, one.capacity, one.token, whole(ends[i + 1] - now), since, one.value, 0 }
  end
  return rows
end

local function waiters(key)
  local rows, line = {}, call('ZRANGE', key.line, 0, -1, 'WITHSCORES')
  for i = 1, #line, 2 do
    local place = placeOf(key, line[i])
    local waited = whole(math.max(now - line[i + 1] / 1000, 0))
    rows[#rows + 1] = { place.owner, place.weight, place.capacity, waited, place.value }
  end
  return rows
end

local function look(plain)
  local key = keyOf(plain)
  local held = standing(key)
  head(key)
  if not held then call('HDEL', index, plain) end
  local rows = holders(key, held)
  if ARGV[1] == 'revoke' and held then
    evict(key, held)
    pcall(serve, key)
    pcall(mark, key)
  end
  return { rows, call('ZCARD', key.line), ARGV[1] == 'all' and waiters(key) or {} }
end

local answers = {}
for i = 1, #KEYS - 1 do
  local ok, answer = pcall(look, KEYS[i + 1])
  answers[i] = ok and answer or failure(answer)
end
return answers
`
    quickAcquire = `-- quick-acquire.lua   the usual case of acquire.lua, whose signature it shares: exclusive claims without further wishes, of
-- keys that nobody holds and nothing else is known of. Decided before the helpers of the long way are even defined, without
-- arithmetic (times of sixteen digits compare as text) and without a function, each of which would show in the price of
-- a lock. Stops at the first claim that is not as simple, or fails: the rest goes the long way, in its order.
local call, try = redis.call, redis.pcall
local answers, done = {}, 0
local clock = call('TIME')
local text = clock[1] .. string.sub('00000' .. clock[2], -6)
-- One call in a hundred goes the long way in any case, and sweeps.
local sweeping = string.sub(text, -2) == '00'

-- It lay in a queue or a frozen server, and whoever asked has given up: nobody would know that it was granted.
local atomic = string.sub(ARGV[1], 1, 1) == '*'
local deadline = atomic and string.sub(ARGV[1], 2) or ARGV[1]
if deadline ~= '' and deadline < text then return '@' .. text end

if not atomic then
  local index, count = KEYS[1], #KEYS - 1
  for i = 1, count do
    if string.find(ARGV[3 * i + 1], ':', 1, true) then break end
    local plain, owner = KEYS[i + 1], ARGV[3 * i - 1]
    local known = try('HMGET', index, '', plain .. '\\0')
    local last = known[1] or ''
    if known.err or known[2] or last >= text then break end
    local set = try('SET', plain, owner, 'NX', 'PX', ARGV[3 * i])
    if not set or set.err then break end
    call('HSET', index, '', text, plain, text .. ':' .. owner)
    -- The index outlives its last use by a day: prolonged every ten thousand seconds, not every time.
    if string.sub(last, 1, 6) ~= string.sub(text, 1, 6) and call('PTTL', index) < 100800000 then
      call('PEXPIRE', index, 100800000)
    end
    answers[i], done = text, i
    if i == count and not sweeping then return count == 1 and text or answers end
    text = string.format('%.0f', text + 1)
  end
end
`
    quickRelease = `-- quick-release.lua   the usual case of release.lua: a lone exclusive lease of which nothing else is known
local ended = false
if #KEYS == 2 and redis.pcall('GET', KEYS[2]) == ARGV[1] then
  redis.call('DEL', KEYS[2])
  if redis.call('HDEL', KEYS[1], KEYS[2], KEYS[2] .. '\\0') < 2 then return 1 end
  ended = true
end
`
    release = `-- release.lua   KEYS index, then per lease: plain      ARGV per lease: owner
-- \u2192 per lease: 1 released | 0 gone | '!error'      (a lone answer is not in a list)

local function letGo(key, owner)
  local held = standing(key)
  if held and held.owner == owner then
    local announced = noteOf(key, held.token)
    clear(key)
    if announced then tell(key, 'changed') end
    return true
  end
  if held and held.total and call('HEXISTS', key.shares, '=' .. owner) == 1 then
    if dropShare(key, owner) == held.total then clear(key) else fitExpiry(key) end
    return true
  end
  head(key)
  -- On a replica this fails, as it must: what a replica does not know of is not gone for certain.
  return leave(key, owner)
end

-- What the quick way left undone: it does not look at notes.
local function afterQuick(key)
  local flags = string.match(call('GET', key.note) or '', '^%d+:(%a*):')
  call('DEL', key.note)
  if flags and string.find(flags, 'a', 1, true) then tell(key, 'changed') end
  return true
end

local function release(i)
  local key, owner = keyOf(KEYS[i + 1]), ARGV[i]
  local released = ended and afterQuick(key) or letGo(key, owner)
  if not released then return 0 end
  -- It is released, whatever comes of handing it on: the head of the line looks again by itself.
  pcall(serve, key)
  pcall(mark, key)
  return 1
end

local answers = {}
for i = 1, #KEYS - 1 do
  local ok, answer = pcall(release, i)
  answers[i] = ok and answer or failure(answer)
end
return #answers == 1 and answers[1] or answers
`
    renew = `-- renew.lua   KEYS index, then per lease: plain      ARGV per lease: owner ttlMs value      value: '' or =value
-- \u2192 per lease: 1 ours | 0 gone | '!error'      (a lone answer is not in a list)

local function renewShare(key, owner, ttl, value)
  local held = standing(key)
  if not held or not held.total then return 0 end
  local entry = call('HGET', key.shares, '=' .. owner)
  if not entry then return 0 end
  local ends = math.max(tonumber(call('ZSCORE', key.ends, owner)), now + ttl)
  call('ZADD', key.ends, whole(ends), owner)
  fitExpiry(key)
  if value then
    local one = unpackShare(entry)
    one.value = value
    local anew = table.concat({ one.weight, one.capacity, one.token, flagsOf(one), value }, ':')
    call('HSET', key.shares, '=' .. owner, anew)
    tell(key, 'changed')
  end
  return 1
end

local function renew(i)
  local plain, owner, ttl = KEYS[i + 1], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1])
  local value = ARGV[3 * i] ~= '' and string.sub(ARGV[3 * i], 2)
  local key = keyOf(plain)
  if content(plain) ~= owner then
    if renewShare(key, owner, ttl, value) == 1 then return 1 end
    -- A write without effect. On a replica it fails, as it must: what a replica does not know of is not gone for certain.
    call('HDEL', index, '\\0')
    return 0
  end
  local left = call('PTTL', plain)
  if left < ttl then
    call('PEXPIRE', plain, ARGV[3 * i - 1])
    if call('HEXISTS', index, key.more) == 1 then call('PEXPIRE', key.note, ARGV[3 * i - 1]) end
  end
  if value then
    local token = standing(key).token or '0'
    writeNote(key, { announce = noteOf(key, token), value = value }, token, whole(math.max(left, ttl)))
    tell(key, 'changed')
  end
  return 1
end

local answers, longest = {}, DAY
for i = 1, #KEYS - 1 do
  local ok, answer = pcall(renew, i)
  answers[i] = ok and answer or failure(answer)
  longest = math.max(longest, tonumber(ARGV[3 * i - 1]))
end
-- Leases that are renewed for days without a new one among them must not outlive the index.
local left = redis.pcall('PTTL', index)
if type(left) == 'number' and left >= 0 and left < longest + HOUR then
  redis.pcall('PEXPIRE', index, whole(longest + 4 * HOUR))
end
return #answers == 1 and answers[1] or answers
`
    take = `-- take.lua   KEYS per request: a meter for each of its limits
-- ARGV sets, then per set: limits, then per limit: b|w limit perMs burst; then either = set cost, for all requests, or per request: set cost
-- \u2192 flat, per request: allowed remaining retryAfterMicros resetMicros    retryAfterMicros -1: never; allowed is '!error' if it failed
-- A token bucket is a string, the time at which it is full again. A sliding window is a list of at:cost:sum, where sum is
-- what was taken up to and with this entry, so that the two ends tell what counts now. Says the same as kit/rate.ts.
local call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
local HAIR = 1e-6
local clock = call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000

-- Whole numbers, because a fraction would have to be written out as text. Up, so that nobody comes too early.
local function micros(ms)
  return ms == math.huge and -1 or ceil(ms * 1000 - HAIR)
end

local function number(value)
  return string.format('%.17g', value)
end

-- free, fullAt
local function bucket(meter, limit)
  local fullAt = max(tonumber(call('GET', meter)) or 0, now)
  return limit.burst - (fullAt > now and (fullAt - now) / limit.perToken or 0), fullAt
end

local function retryBucket(limit, cost, free)
  if cost > limit.burst or limit.limit == 0 then return math.huge end
  local short = (cost - free) * limit.perToken
  return short > HAIR and short or 0
end

local function fill(meter, fullAt)
  if fullAt > now then call('SET', meter, fullAt, 'PX', ceil(fullAt - now)) end
end

local function entry(text)
  local at, cost, sum = string.match(text or '', '^([^:]+):([^:]+):([^:]+)$')
  return tonumber(at), tonumber(cost), tonumber(sum)
end

-- How long until enough of the oldest entries no longer count.
local function waitFor(meter, limit, cost, free)
  local retry = 0
  for from = 0, 1e9, 100 do
    local page = call('LRANGE', meter, from, from + 99)
    for _, text in ipairs(page) do
      if cost <= free + HAIR then return retry end
      local at, took = entry(text)
      free = free + took
      retry = at + limit.per - now
    end
    if #page < 100 then return retry end
  end
end

-- free, sum so far, reset
local function window(meter, limit)
  local at, took, sum = entry(call('LINDEX', meter, 0))
  while at and at + limit.per <= now do
    call('LPOP', meter)
    at, took, sum = entry(call('LINDEX', meter, 0))
  end
  local last, _, total = entry(call('LINDEX', meter, -1))
  return limit.limit - (at and total - sum + took or 0), total or 0, last and last + limit.per - now or 0
end

-- Each: free, retry, reset before; what charging it needs
local function judge(meter, limit, cost)
  if limit.bucket then
    local free, fullAt = bucket(meter, limit)
    return { free = free, retry = retryBucket(limit, cost, free), reset = fullAt - now, state = fullAt }
  end
  local free, sum, reset = window(meter, limit)
  local retry = cost > limit.limit and math.huge or waitFor(meter, limit, cost, free)
  return { free = free, retry = retry, reset = reset, state = sum }
end

local function charge(meter, limit, cost, verdict)
  verdict.free = verdict.free - cost
  if limit.bucket then
    local fullAt = verdict.state + cost * limit.perToken
    fill(meter, fullAt)
    verdict.reset = fullAt - now
  elseif cost > 0 then
    call('RPUSH', meter, number(now) .. ':' .. number(cost) .. ':' .. number(verdict.state + cost))
    call('PEXPIRE', meter, ceil(limit.per))
    verdict.reset = limit.per
  end
end

local function take(limits, used, cost)
  local verdicts, retry = {}, 0
  for i, limit in ipairs(limits) do
    verdicts[i] = judge(KEYS[used + i], limit, cost)
    retry = max(retry, verdicts[i].retry)
  end
  local remaining, reset = math.huge, 0
  for i, limit in ipairs(limits) do
    if retry == 0 then charge(KEYS[used + i], limit, cost, verdicts[i]) end
    remaining = math.min(remaining, verdicts[i].free)
    reset = max(reset, verdicts[i].reset)
  end
  return retry == 0 and 1 or 0, remaining, retry, reset
end

-- The usual case, without a table.
local function takeBucket(meter, limit, cost)
  local free, fullAt = bucket(meter, limit)
  local retry = retryBucket(limit, cost, free)
  if retry > 0 then return 0, free, retry, fullAt - now end
  fullAt = fullAt + cost * limit.perToken
  fill(meter, fullAt)
  return 1, free - cost, 0, fullAt - now
end

local sets, at = {}, 2
for i = 1, tonumber(ARGV[1]) do
  local set, count = {}, tonumber(ARGV[at])
  for j = 1, count do
    local from = at + 1 + (j - 1) * 4
    local limit, per = tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2])
    set[j] = { bucket = ARGV[from] == 'b', limit = limit, per = per, burst = tonumber(ARGV[from + 3]), perToken = per / limit }
  end
  sets[i], at = set, at + 1 + count * 4
end

local same = ARGV[at] == '='
local set, cost = sets[tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
local answers, n, used, last = {}, 0, 0, #KEYS
while used < last do
  if not same then set, cost, at = sets[tonumber(ARGV[at])], tonumber(ARGV[at + 1]), at + 2 end
  local ok, allowed, remaining, retry, reset
  if #set == 1 and set[1].bucket then ok, allowed, remaining, retry, reset = pcall(takeBucket, KEYS[used + 1], set[1], cost)
  else ok, allowed, remaining, retry, reset = pcall(take, set, used, cost) end
  if ok then
    answers[n + 1], answers[n + 2] = allowed, max(floor(remaining + HAIR), 0)
    answers[n + 3], answers[n + 4] = micros(retry), micros(reset)
  else
    answers[n + 1] = '!' .. (type(allowed) == 'table' and allowed.err or tostring(allowed))
    answers[n + 2], answers[n + 3], answers[n + 4] = 0, 0, 0
  end
  n, used = n + 4, used + #set
end
return answers
`
  },
})

// src/stores/redis/scripts.ts
import { createHash } from 'node:crypto'
function composeScripts(sources, cluster) {
  const common2 = cluster
    ? sources.common.replace("local PUBLISH = 'PUBLISH'", "local PUBLISH = 'SPUBLISH'")
    : sources.common
  return {
    acquire: script(sources.quickAcquire, common2, sources.acquire),
    renew: script(common2, sources.renew),
    release: script(sources.quickRelease, common2, sources.release),
    look: script(common2, sources.look),
    take: script(sources.take),
    index: script(sources.index),
    list: script(sources.list),
  }
}
function script(...parts) {
  const source = parts.join('\n')
  return { source, sha: createHash('sha1').update(source).digest('hex') }
}
var embedded
var init_scripts = __esm({
  'src/stores/redis/scripts.ts'() {
    'use strict'
    init_embedded()
    embedded = embedded_exports
  },
})

// src/stores/redis/transport.ts
var PROBE_MS, LONGEST_PROBE_MS, Transport
var init_transport = __esm({
  'src/stores/redis/transport.ts'() {
    'use strict'
    init_errors()
    init_duration()
    init_trouble()
    PROBE_MS = 50
    LONGEST_PROBE_MS = 1e3
    Transport = class {
      #adapter
      #timeoutMs
      #options
      #probing
      #closed = false
      constructor(adapter, options) {
        this.#adapter = adapter
        this.#timeoutMs = options.timeoutMs
        this.#options = options
        adapter.onShock(() => this.#probeIn(PROBE_MS))
      }
      close() {
        this.#closed = true
        clearTimeout(this.#probing)
      }
      /** Rejects with what is wrong, as a `StoreUnavailableError`. */
      run(script2, keys, args) {
        return this.ask(script2, keys, args, (reply) => reply)
      }
      /** `run`, and what is made of the reply: one promise, since every further one shows in the price of a lock. */
      ask(script2, keys, args, read) {
        const adapter = this.#adapter
        if (!adapter.ready()) return this.whenReady().then(() => this.ask(script2, keys, args, read))
        return adapter.evalsha(script2.sha, keys, args).then(read, (error) => {
          if (isNoScript(error))
            return adapter.eval(script2.source, keys, args).then(read, (reason) => this.#fail(reason))
          return this.#fail(error)
        })
      }
      #fail(error) {
        if (!(error instanceof Error) || !/^(NOPERM|NOAUTH|OOM|WRONGTYPE|ERR)\b/.test(error.message))
          this.#probeIn(PROBE_MS)
        throw unavailable(error)
      }
      #probeIn(ms) {
        if (this.#probing || this.#closed) return
        const again = () => {
          this.#probing = void 0
          this.#probeIn(Math.min(ms * 2, LONGEST_PROBE_MS))
        }
        this.#probing = setTimeout(() => {
          const { probe, onRecovered } = this.#options
          if (this.#adapter.closed()) return
          if (!this.#adapter.ready()) return again()
          const recovered = () => {
            this.#probing = void 0
            if (!this.#closed) onRecovered()
          }
          this.#adapter
            .evalsha(probe.sha, [], [])
            .then(recovered, (error) => (isNoScript(error) ? recovered() : again()))
        }, ms)
        this.#probing.unref()
      }
      /**
       * A client that is not connected would put the question into a queue, and carry it out minutes later, when whoever asked
       * has long gone. So it is not given to the client before that is ready, and not at all if that takes too long.
       */
      whenReady() {
        const adapter = this.#adapter
        if (adapter.ready()) return Promise.resolve()
        adapter.wake()
        return new Promise((resolve, reject) => {
          const settle = (error) => {
            clearTimeout(timer)
            stop()
            if (error) reject(error)
            else resolve()
          }
          const look2 = () => {
            if (adapter.ready()) settle()
            else if (adapter.closed()) settle(unavailable(adapter.trouble()))
          }
          const timer = setTimeout(() => {
            const reason = unavailable(adapter.trouble()).message
            const waited = `not connected within ${formatDuration(this.#timeoutMs)}`
            settle(new StoreUnavailableError(`${reason}; ${waited}`, { cause: adapter.trouble() }))
          }, this.#timeoutMs)
          timer.unref()
          const stop = adapter.onTurn(look2)
          look2()
        })
      }
    }
  },
})

// src/stores/redis/store.ts
function createRedisStore(adapter, options = {}, sources = embedded, closeClient) {
  return new RedisStore(adapter, options, sources, closeClient)
}
async function regrouped(items, groupOf, call) {
  const groups = /* @__PURE__ */ new Map()
  for (const [i, item] of items.entries()) {
    const group = groupOf(item)
    const members = groups.get(group)
    if (members) members.push(i)
    else groups.set(group, [i])
  }
  const answers = []
  await Promise.all(
    [...groups].map(async ([group, members]) => {
      const part = await call(
        members.map((i) => items[i]),
        group,
      )
      for (const [at, i] of members.entries()) answers[i] = part[at]
    }),
  )
  return answers
}
function wholeMs(ms) {
  return Math.max(Math.floor(ms), 1)
}
function termsOfTakes(requests) {
  const sets = /* @__PURE__ */ new Map()
  const args = ['']
  for (const { limits } of requests) {
    if (sets.has(limits)) continue
    sets.set(limits, sets.size + 1)
    args.push(String(limits.length))
    for (const { algorithm, limit, perMs, burst } of limits) {
      args.push(algorithm === 'token-bucket' ? 'b' : 'w', String(limit), String(perMs), String(burst))
    }
  }
  args[0] = String(sets.size)
  const [first] = requests
  if (first && sets.size === 1 && requests.every(({ cost }) => cost === first.cost)) {
    args.push('=', '1', String(first.cost))
  } else for (const { limits, cost } of requests) args.push(String(sets.get(limits)), String(cost))
  return args
}
function termsOf({ weight, capacity, placeMs, announce, steal, value, ttlMs }) {
  const place = placeMs !== void 0 && placeMs > 0 ? String(wholeMs(placeMs)) : ''
  if (weight === ALL && !announce && !steal && value === void 0 && ttlMs < DAY_MS / 2) return place
  const flags = `${announce ? 'a' : ''}${steal ? 's' : ''}${value === void 0 ? '' : 'v'}`
  return `${weight}:${capacity}:${place || '0'}:${flags}:${value ?? ''}`
}
var MAX_BATCH, DAY_MS, HOUR_MS, RedisStore
var init_store2 = __esm({
  'src/stores/redis/store.ts'() {
    'use strict'
    init_errors()
    init_duration()
    init_store()
    init_bells()
    init_eviction()
    init_foreigners()
    init_listing()
    init_names()
    init_replies()
    init_scripts()
    init_transport()
    MAX_BATCH = 249
    DAY_MS = 864e5
    HOUR_MS = 36e5
    RedisStore = class {
      name = 'redis'
      expiry = 'timed'
      features = { line: true, counting: true, atomic: true, values: true }
      maxBatch = MAX_BATCH
      timeoutMs
      #adapter
      #names
      #scripts
      #transport
      #bells
      #listing
      #foreigners
      #eviction
      #closeClient
      #doubters = /* @__PURE__ */ new Set()
      #closing
      constructor(adapter, options, sources, closeClient) {
        const { prefix = '', timeout = '2s', alwaysListen = false, listForeign = true, allowEviction = false } = options
        if (typeof prefix !== 'string' || prefix.includes('\0'))
          throw new InvalidOptionError('prefix', prefix, 'a text without NUL')
        this.timeoutMs = milliseconds('timeout', timeout, { min: 1, max: 2 ** 31 - 1 })
        this.#adapter = adapter
        this.#closeClient = closeClient
        this.#names = new Names(adapter.keyPrefix, prefix, adapter.cluster)
        this.#scripts = composeScripts(sources, adapter.cluster)
        const onRecovered = () => this.#doubtAll()
        this.#transport = new Transport(adapter, { timeoutMs: this.timeoutMs, probe: this.#scripts.list, onRecovered })
        this.#eviction = allowEviction ? void 0 : new Eviction(adapter)
        this.#foreigners = listForeign ? new Foreigners(adapter, this.#names, this.timeoutMs / 2) : void 0
        this.#listing = new Listing(this.#transport, this.#names, this.#scripts, this.#foreigners)
        this.#bells = new Bells2(adapter, this.#names, {
          timeoutMs: this.timeoutMs,
          always: alwaysListen,
          onRevoked: () => this.#doubt(),
          findOut: (channel) => this.#transport.run(this.#scripts.list, [channel], []),
        })
        adapter.onDoubt(() => this.#doubtAll())
      }
      partition(key) {
        return this.#adapter.cluster ? this.#names.slot(key) : 0
      }
      acquire(claims, options) {
        const atomic = options?.atomic === true
        if (claims.length === 1) return this.#askOne(claims[0]) ?? this.#askAll(claims, atomic)
        return this.#askAll(claims, atomic)
      }
      #askOne(claim2) {
        const { plain: plain2, index: index2 } = this.#names.of(claim2.key)
        const sentAt = performance.now()
        if (sentAt >= index2.warmUntil || claim2.ttlMs > DAY_MS || !this.#adapter.ready()) return void 0
        const ttlMs = wholeMs(claim2.ttlMs)
        const args = [index2.clock.deadline(sentAt + this.timeoutMs), claim2.owner, String(ttlMs), termsOf(claim2)]
        return this.#transport.ask(this.#scripts.acquire, [index2.name, plain2], args, (reply) => {
          const late = tooLate(reply)
          if (late !== void 0) return this.#askAgain([claim2], index2, false, { sentAt, late })
          const answer = answerOf(reply, claim2, ttlMs)
          if (answer.granted === true && index2.clock.isDue(sentAt)) index2.clock.heard(Number(answer.token), sentAt)
          return [answer]
        })
      }
      #askAll(claims, atomic) {
        return this.#byIndex(claims, atomic, (part, index2) => {
          let longest = 0
          for (const { ttlMs } of part) if (ttlMs > longest) longest = ttlMs
          const now2 = performance.now()
          const pending = this.#prepare(index2, longest, now2)
          if (!pending) return this.#ask(part, index2, atomic, now2)
          return pending.then(() => this.#ask(part, index2, atomic, performance.now()))
        })
      }
      renew(renewals) {
        return this.#byIndex(renewals, false, async (part, index2) => {
          await this.#announce(index2, Math.max(...part.map(({ ttlMs }) => ttlMs)), performance.now())
          const args = part.flatMap(({ owner: owner2, ttlMs, value }) => [
            owner2,
            String(wholeMs(ttlMs)),
            value === void 0 ? '' : `=${value}`,
          ])
          const reply = await this.#transport.run(this.#scripts.renew, this.#keys(part, index2), args)
          return answersOf(reply, part.length).map((answer, i) => renewedOf(answer, wholeMs(part[i].ttlMs)))
        })
      }
      release(leases) {
        if (leases.length === 1 && this.#adapter.ready()) {
          const { key, owner: owner2 } = leases[0]
          const { plain: plain2, index: index2 } = this.#names.of(key)
          return this.#transport.ask(this.#scripts.release, [index2.name, plain2], [owner2], (reply) => [
            releasedOf(reply),
          ])
        }
        return this.#byIndex(leases, false, (part, index2) => {
          const args = part.map(({ owner: owner2 }) => owner2)
          const read = (reply) => answersOf(reply, part.length).map(releasedOf)
          return this.#transport.ask(this.#scripts.release, this.#keys(part, index2), args, read)
        })
      }
      watch(key, listener) {
        return this.#bells.watch(key, listener)
      }
      onDoubt(listener) {
        this.#doubters.add(listener)
        return () => this.#doubters.delete(listener)
      }
      holders(prefix) {
        return this.#listing.holders(prefix)
      }
      inspect(key) {
        return this.#look(key, 'all')
      }
      async revoke(key) {
        return (await this.#look(key, 'revoke')).holders
      }
      async take(requests) {
        return this.#byPartition(requests, async (part) => {
          const reply = await this.#transport.run(this.#scripts.take, this.#meters(part), termsOfTakes(part))
          return part.map((_, i) => takenOf(reply, i * 4))
        })
      }
      #meters(requests) {
        const meters = []
        for (const { key, limits } of requests) {
          for (let i = 0; i < limits.length; i++) meters.push(this.#names.meter(key, i, limits[i]))
        }
        return meters
      }
      async now() {
        return Number(await this.#transport.run(this.#scripts.list, [], [])) / 1e3
      }
      close() {
        this.#closing ??= this.#end()
        return this.#closing
      }
      async #end() {
        this.#bells.close()
        this.#transport.close()
        this.#foreigners?.close()
        this.#adapter.detach()
        this.#doubters.clear()
        await this.#closeClient?.()
      }
      /** The server may be another than before, or know nothing any more. */
      #doubtAll() {
        for (const index2 of this.#names.indexes) index2.warmUntil = index2.announcedUntil = 0
        this.#bells.refresh()
        this.#doubt()
      }
      #doubt() {
        for (const listener of [...this.#doubters]) listener()
      }
      async #look(key, how) {
        const keys = [this.#names.index(key).name, this.#names.plain(key)]
        const reply = await this.#transport.run(this.#scripts.look, keys, [how])
        return viewOf(reply[0], key)
      }
      #keys(items, index2) {
        const keys = [index2.name]
        for (const { key } of items) keys.push(this.#names.plain(key))
        return keys
      }
      #ask(claims, index2, atomic, sentAt) {
        const deadline = index2.clock.deadline(sentAt + this.timeoutMs)
        const args = [atomic ? `*${deadline}` : deadline]
        for (const claim2 of claims) args.push(claim2.owner, String(wholeMs(claim2.ttlMs)), termsOf(claim2))
        return this.#transport.ask(this.#scripts.acquire, this.#keys(claims, index2), args, (reply) => {
          const late = tooLate(reply)
          if (late !== void 0) return this.#askAgain(claims, index2, atomic, { sentAt, late })
          const replies = answersOf(reply, claims.length)
          const answers = claims.map((claim2, i) => answerOf(replies[i], claim2, wholeMs(claim2.ttlMs)))
          const [first] = answers
          if (first?.granted === true && index2.clock.isDue(sentAt)) index2.clock.heard(Number(first.token), sentAt)
          return answers
        })
      }
      /** Late by the server's clock. If it is not by ours, one of the clocks was set: ask once more, by the new time. */
      async #askAgain(claims, index2, atomic, { sentAt, late }) {
        index2.clock.heard(late, sentAt)
        const now2 = performance.now()
        if (now2 - sentAt < this.timeoutMs) return this.#ask(claims, index2, atomic, now2)
        throw new StoreUnavailableError('redis was asked too late: the question had been under way for too long')
      }
      /** What has to be settled before the first question, and now and then; undefined, as nearly always, when nothing has. */
      #prepare(index2, ttlMs, now2) {
        if (now2 < index2.warmUntil && ttlMs <= DAY_MS && this.#adapter.ready()) return void 0
        if (!this.#adapter.ready()) {
          return this.#transport.whenReady().then(() => this.#prepare(index2, ttlMs, performance.now()))
        }
        const judged = this.#eviction?.check(now2)
        const known = this.#announce(index2, ttlMs, now2)
        const settled = () => {
          if (!this.#eviction?.refuses)
            index2.warmUntil = Math.min(this.#eviction?.dueAt ?? Number.POSITIVE_INFINITY, index2.announcedUntil)
        }
        if (!judged && !known) return void settled()
        return Promise.all([judged, known]).then(settled)
      }
      /** Tells the directory that this index is in use: every few hours, or for longer leases. Only those who list depend on it. */
      #announce(index2, ttlMs, now2) {
        const neededMs = Math.max(DAY_MS, ttlMs)
        if (index2.announcedUntil >= now2 + neededMs - DAY_MS + 1) return void 0
        index2.announcedUntil = now2 + neededMs - DAY_MS + HOUR_MS
        const args = [index2.name, String(Math.ceil(neededMs + 3 * HOUR_MS))]
        return this.#transport.run(this.#scripts.index, [this.#names.directory], args).then(
          () => {},
          () => {
            index2.announcedUntil = 0
          },
        )
      }
      /** The core never mixes slots, but may mix kinds, which have an index each. */
      #byIndex(items, together, call) {
        const [first] = items
        if (!first) return Promise.resolve([])
        const index2 = this.#names.index(first.key)
        if (items.length === 1 || items.every(({ key }) => this.#names.index(key) === index2))
          return call(items, index2)
        if (together)
          throw new UnsupportedError(
            'redis grants all or none only for keys of one kind and, on a cluster, of one slot',
          )
        return regrouped(items, ({ key }) => this.#names.index(key), call)
      }
      #byPartition(items, call) {
        if (items.length === 0) return Promise.resolve([])
        return regrouped(items, ({ key }) => this.partition(key), call)
      }
    }
  },
})

// src/stores/redis/index.ts
function redis(client, options = {}) {
  return createRedisStore(adapterOf(client), options)
}
function adapterOf(client) {
  if (typeof client === 'object' && client !== null) {
    if (isIoRedis(client)) return ioredisAdapter(client)
    if (isNodeRedis(client)) return nodeRedisAdapter(client)
  }
  throw new InvalidOptionError(
    'client',
    client,
    'an ioredis Redis or Cluster, or a node-redis client, cluster or sentinel (not a pool, a multi or a URL)',
  )
}
var init_redis = __esm({
  'src/stores/redis/index.ts'() {
    'use strict'
    init_errors()
    init_ioredis()
    init_node_redis()
    init_store2()
  },
})

// bench/zz-redis-tmp.mts
import { Redis } from 'ioredis'
import { spawn } from 'node:child_process'

// src/core/engine.ts
init_errors()

// src/core/timers.ts
var Timed = class {
  /** @internal */
  dueAt = 0
  /** @internal */
  before = void 0
  /** @internal */
  after = void 0
  /** @internal */
  queue = void 0
}
var FEW_QUEUES = 64
var Timers = class {
  #world
  #keepAlive
  #queues = /* @__PURE__ */ new Map()
  #latestQueue
  #cancel
  #armedFor = Number.POSITIVE_INFINITY
  #count = 0
  #mostQueues = FEW_QUEUES
  constructor(world, keepAlive = false) {
    this.#world = world
    this.#keepAlive = keepAlive
  }
  /** Call `item` at `dueAt`, instead of whenever it was due before. `delay` is its usual delay, and chooses the list. */
  set(item, dueAt, delay, earlyMs = 0) {
    if (item.queue) this.#unlink(item)
    else this.#count++
    item.dueAt = dueAt
    const queue = this.#queueFor(delay)
    queue.earlyMs = earlyMs
    item.queue = queue
    let before = queue.last
    while (before && before.dueAt > dueAt) before = before.before
    const after = before ? before.after : queue.first
    item.before = before
    item.after = after
    if (before) before.after = item
    else queue.first = item
    if (after) after.before = item
    else queue.last = item
    if (dueAt < this.#armedFor) this.#arm(dueAt)
  }
  /** A timer that keeps nobody alive is left as it is: it finds nothing to do, which is cheaper than setting it anew. */
  clear(item) {
    if (!item.queue) return
    this.#unlink(item)
    this.#count--
    if (this.#keepAlive && this.#count === 0) this.#disarm()
  }
  #unlink(item) {
    const { queue, before, after } = item
    if (!queue) return
    if (before) before.after = after
    else queue.first = after
    if (after) after.before = before
    else queue.last = before
    item.queue = item.before = item.after = void 0
  }
  *[Symbol.iterator]() {
    for (const queue of this.#queues.values()) {
      let item = queue.first
      while (item) {
        const { after } = item
        yield item
        item = after
      }
    }
  }
  stop() {
    this.#disarm()
    this.#queues.clear()
    this.#latestQueue = void 0
  }
  #queueFor(delay) {
    if (this.#latestQueue?.delay === delay) return this.#latestQueue
    let queue = this.#queues.get(delay)
    if (!queue) {
      if (this.#queues.size >= this.#mostQueues) this.#sweep()
      this.#queues.set(delay, (queue = { delay, earlyMs: 0, first: void 0, last: void 0 }))
    }
    this.#latestQueue = queue
    return queue
  }
  /** Callers whose delays all differ, and who never let one pass, would leave an empty list behind for each. */
  #sweep() {
    for (const queue of this.#queues.values()) if (!queue.first) this.#queues.delete(queue.delay)
    this.#mostQueues = Math.max(FEW_QUEUES, this.#queues.size * 2)
  }
  #arm(dueAt) {
    this.#cancel?.()
    this.#armedFor = dueAt
    this.#cancel = this.#world.after(Math.max(dueAt - this.#world.now(), 0), () => this.#fire(), this.#keepAlive)
  }
  #disarm() {
    this.#cancel?.()
    this.#cancel = void 0
    this.#armedFor = Number.POSITIVE_INFINITY
  }
  #fire() {
    this.#cancel = void 0
    this.#armedFor = Number.POSITIVE_INFINITY
    const now2 = this.#world.now()
    for (const queue of this.#queues.values()) {
      const last = queue.last
      let item = queue.first
      while (item && item.dueAt - queue.earlyMs <= now2) {
        this.#unlink(item)
        this.#count--
        item.due(now2)
        if (item === last) break
        item = queue.first
      }
    }
    let next = Number.POSITIVE_INFINITY
    for (const queue of this.#queues.values()) {
      if (queue.first) next = Math.min(next, queue.first.dueAt)
      else if (queue !== this.#latestQueue) this.#queues.delete(queue.delay)
    }
    if (next < this.#armedFor) this.#arm(next)
  }
}
var Alarm = class extends Timed {
  #ring
  constructor(ring) {
    super()
    this.#ring = ring
  }
  due() {
    this.#ring()
  }
}

// src/core/bells.ts
var LINGER_MS = 5e3
var Bells = class {
  #store
  #timers
  #onRevoked
  #bells = /* @__PURE__ */ new Map()
  constructor(store2, timers, onRevoked) {
    this.#store = store2
    this.#timers = timers
    this.#onRevoked = onRevoked
  }
  /** Undefined where the store has no wake-up: whoever waits then polls. */
  listen(key, listener) {
    const bell = this.open(key)
    bell?.add(listener)
    return bell
  }
  /** Subscribed already, and so able to miss nothing. */
  live(key) {
    return this.#bells.get(key)?.live() ?? false
  }
  open(key) {
    if (!this.#store.watch) return void 0
    let bell = this.#bells.get(key)
    if (!bell) {
      bell = new Bell(this.#timers, () => this.#bells.delete(key))
      bell.hang(
        this.#store.watch(key, (event) => {
          if (event.type === 'revoked') this.#onRevoked(key, event.owner)
          bell?.ring(event)
        }),
      )
      this.#bells.set(key, bell)
    }
    return bell
  }
  close() {
    for (const bell of this.#bells.values()) bell.take()
    this.#bells.clear()
  }
}
var Bell = class {
  #timers
  #listeners = /* @__PURE__ */ new Set()
  #linger
  #watch
  #needed = 0
  constructor(timers, forget) {
    this.#timers = timers
    this.#linger = new Alarm(() => {
      forget()
      this.take()
    })
  }
  hang(watch) {
    this.#watch = watch
  }
  get ready() {
    return this.#watch?.ready ?? false
  }
  live() {
    return this.#watch?.live() ?? false
  }
  add(listener) {
    this.#listeners.add(listener)
    this.keep()
  }
  remove(listener, now2) {
    if (this.#listeners.delete(listener)) this.leave(now2)
  }
  /** For somebody who needs it to hang here without listening: the one who holds the key. */
  keep() {
    this.#timers.clear(this.#linger)
    this.#needed++
  }
  leave(now2) {
    if (--this.#needed === 0) this.#timers.set(this.#linger, now2 + LINGER_MS, LINGER_MS, LINGER_MS / 2)
  }
  ring(event) {
    for (const listener of [...this.#listeners]) listener(event)
  }
  take() {
    this.#timers.clear(this.#linger)
    this.#watch?.close()
    this.#watch = void 0
  }
}

// src/core/cancel.ts
var Audience = class {
  #signal
  #cancels = /* @__PURE__ */ new Set()
  constructor(signal) {
    this.#signal = signal
    signal.addEventListener('abort', this.#tell, { once: true })
  }
  add(cancel) {
    this.#cancels.add(cancel)
  }
  remove(cancel) {
    this.#cancels.delete(cancel)
    if (this.#cancels.size > 0) return
    this.#signal.removeEventListener('abort', this.#tell)
    if (audiences.get(this.#signal) === this) audiences.delete(this.#signal)
  }
  #tell = () => {
    for (const cancel of [...this.#cancels]) cancel()
  }
}
var audiences = /* @__PURE__ */ new WeakMap()
function onAbort(signal, cancel) {
  let audience = audiences.get(signal)
  if (!audience) audiences.set(signal, (audience = new Audience(signal)))
  const joined = audience
  joined.add(cancel)
  return () => joined.remove(cancel)
}

// src/core/courier.ts
init_errors()
init_duration()
var Courier = class {
  store
  #world
  #onStray
  #immediate
  #acquiring
  #renewing
  #releasing
  #taking
  /** `onStray` is told of grants whose asker was already told «unknown». */
  constructor(store2, world, onStray) {
    this.store = store2
    this.#world = world
    this.#onStray = onStray
    this.#immediate = store2.immediate === true
    const failed = (error) => ({ granted: 'unknown', error })
    const unsure = (error) => ({ outcome: 'unknown', error })
    this.#releasing = new Channel(this, { call: (leases) => store2.release(leases), unknown: unsure })
    this.#renewing = new Channel(this, {
      call: (renewals) => store2.renew(renewals),
      unknown: unsure,
      inBackground: true,
    })
    this.#acquiring = new Channel(this, {
      call: (claims) => store2.acquire(claims),
      unknown: failed,
      late: (claim2, answer) => {
        if (answer.granted === true) this.#onStray(claim2, answer)
      },
    })
    this.#taking = new Channel(this, {
      call: (requests) => store2.take(requests),
      unknown: failed,
    })
  }
  acquire(claim2) {
    if (this.#immediate) {
      try {
        return this.store.acquire([claim2])[0]
      } catch (error) {
        return { granted: 'unknown', error: this.#explain(error) }
      }
    }
    return claim2.blockMs ? this.#acquiring.sendAlone(claim2, claim2.blockMs) : this.#acquiring.send(claim2)
  }
  /** All or none, in one call of their own. */
  async acquireTogether(claims) {
    const failed = (error) => claims.map(() => ({ granted: 'unknown', error }))
    return this.within(() => this.store.acquire(claims, { atomic: true }), failed, {
      late: (answers) => {
        for (const [i, answer] of answers.entries()) {
          if (answer.granted === true) this.#onStray(claims[i], answer)
        }
      },
    })
  }
  renew(renewal) {
    return this.#renewing.send(renewal)
  }
  release(lease) {
    if (this.#immediate) {
      try {
        return this.store.release([lease])[0]
      } catch (error) {
        return { outcome: 'unknown', error: this.#explain(error) }
      }
    }
    return this.#releasing.send(lease)
  }
  take(request) {
    return this.#taking.send(request)
  }
  /** Every call ends: with an answer, or as unknown when the store's time limit has passed. Never rejects. */
  within(call, unknown, options = {}) {
    const { extraMs = 0, late, inBackground = false } = options
    let answer
    try {
      answer = call()
    } catch (error) {
      return unknown(this.#explain(error))
    }
    if (!(answer instanceof Promise)) return answer
    const promise = answer
    return new Promise((resolve) => {
      const limit = this.store.timeoutMs + extraMs
      let over = false
      const giveUp = () => {
        over = true
        resolve(unknown(new StoreUnavailableError(`${this.store.name} did not answer within ${formatDuration(limit)}`)))
      }
      const cancel = this.#world.after(limit, giveUp, !inBackground)
      promise.then(
        (value) => {
          cancel()
          if (over) late?.(value)
          else resolve(value)
        },
        (error) => {
          cancel()
          resolve(unknown(this.#explain(error)))
        },
      )
    })
  }
  #explain(error) {
    if (error instanceof LeaseholdError) return error
    const reason = error instanceof Error ? error.message || error.name : String(error)
    return new StoreUnavailableError(`${this.store.name} is unavailable: ${reason}`, { cause: error })
  }
}
var Channel = class {
  #courier
  #questions
  #parcels = []
  constructor(courier, questions) {
    this.#courier = courier
    this.#questions = questions
  }
  send(item) {
    return new Promise((resolve) => {
      this.#parcels.push({ item, resolve })
      if (this.#parcels.length === 1) queueMicrotask(() => process.nextTick(() => this.#flush()))
    })
  }
  /** By itself and at once: its answer may take `extraMs` longer, and the others should not wait for it. */
  sendAlone(item, extraMs) {
    return new Promise((resolve) => this.#dispatch([{ item, resolve }], extraMs))
  }
  #flush() {
    const parcels = this.#parcels
    this.#parcels = []
    for (const batch of this.#batches(parcels)) this.#dispatch(batch)
  }
  #dispatch(batch, extraMs = 0) {
    const { call, unknown, late, inBackground } = this.#questions
    const items = batch.map((parcel) => parcel.item)
    const answers = this.#courier.within(
      () => call(items),
      (error) => items.map(() => unknown(error)),
      {
        extraMs,
        inBackground,
        late: (answers2) => {
          for (const [i, answer] of answers2.entries()) late?.(items[i], answer)
        },
      },
    )
    if (answers instanceof Promise) void answers.then((list2) => this.#deliver(batch, list2))
    else this.#deliver(batch, answers)
  }
  #deliver(batch, answers) {
    if (answers.length === batch.length) {
      for (const [i, parcel] of batch.entries()) parcel.resolve(answers[i])
      return
    }
    const counts = `${answers.length} of ${batch.length} questions`
    const error = new StoreUnavailableError(`${this.#courier.store.name} answered ${counts}`)
    for (const parcel of batch) parcel.resolve(this.#questions.unknown(error))
  }
  /** Never two partitions in one call, never more than the store takes. */
  #batches(parcels) {
    const { store: store2 } = this.#courier
    const byPartition = /* @__PURE__ */ new Map()
    for (const parcel of parcels) {
      const partition = store2.partition?.(parcel.item.key) ?? 0
      const group = byPartition.get(partition)
      if (group) group.push(parcel)
      else byPartition.set(partition, [parcel])
    }
    const most = store2.maxBatch ?? Number.POSITIVE_INFINITY
    const batches = []
    for (const group of byPartition.values()) {
      if (group.length <= most) batches.push(group)
      else for (let i = 0; i < group.length; i += most) batches.push(group.slice(i, i + most))
    }
    return batches
  }
}

// src/core/events.ts
var Events = class {
  #listeners = /* @__PURE__ */ new Map()
  on(event, listener) {
    let listeners = this.#listeners.get(event)
    if (!listeners) this.#listeners.set(event, (listeners = /* @__PURE__ */ new Set()))
    listeners.add(listener)
  }
  off(event, listener) {
    const listeners = this.#listeners.get(event)
    listeners?.delete(listener)
    if (listeners?.size === 0) this.#listeners.delete(event)
  }
  has(event) {
    return this.#listeners.size > 0 && this.#listeners.has(event)
  }
  /** Facts are only put together when somebody listens. */
  emit(event, facts2) {
    if (!this.has(event)) return
    const told = facts2()
    for (const listener of [...this.#listeners.get(event)]) {
      try {
        listener(told)
      } catch (error) {
        process.emitWarning(error instanceof Error ? error : String(error), 'LeaseholdListenerWarning')
      }
    }
  }
}

// src/core/identity.ts
import { hostname } from 'node:os'
var Identity = class {
  /** `host:pid:uuid`, unique per instance: what people look for in logs first. */
  instance
  #count = 0
  constructor(world) {
    this.instance = `${hostname().slice(0, 64)}:${process.pid}:${uuidv7(world)}`
  }
  /** A UUID for each acquisition would cost more than the rest of it: the instance and a counter are as unique. */
  next() {
    return `${this.instance}/${++this.#count}`
  }
}
function uuidv7(world) {
  const bytes = world.bytes()
  const time = BigInt(Math.floor(world.date()))
  for (let i = 0; i < 6; i++) bytes[i] = Number((time >> BigInt(8 * (5 - i))) & 0xffn)
  bytes[6] = (bytes[6] & 15) | 112
  bytes[8] = (bytes[8] & 63) | 128
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
}

// src/core/lease.ts
init_errors()
function driftOf(ttlMs) {
  return ttlMs * 0.01 + 2
}
var BEAT = 1 / 3
var COALESCE = 0.1
var Lease = class extends Timed {
  engine
  ask
  owner
  token
  /** By the local clock. */
  acquiredAt
  ttlMs
  /** From here on it is not trusted, whatever the store may say later. No I/O can move it but a renewal that worked. */
  deadline
  loss = void 0
  released = false
  autoRenew
  /** Strong until the first beat, weak from then on: most locks are gone by then and never pay for it. */
  #face = void 0
  #controller = void 0
  #renewing = void 0
  #bell = void 0
  #failures = 0
  /** `extend` made it shorter than what the store was told, and the store never shortens: then until when it is kept there. */
  #storedUntil = void 0
  /** `keep` was tried, and may have worked although it was not answered: what it left is not ours to take back. */
  #kept = false
  constructor(engine, ask, grant, sentAt) {
    super()
    this.engine = engine
    this.ask = ask
    this.owner = grant.owner
    this.token = grant.token
    this.ttlMs = ask.ttlMs
    this.autoRenew = ask.autoRenew
    this.acquiredAt = sentAt
    const until = sentAt + grant.ttlMs - driftOf(grant.ttlMs)
    this.deadline = ask.maxHoldMs === void 0 ? until : Math.min(until, sentAt + ask.maxHoldMs)
    if (grant.lost) this.#hangOn(grant.lost)
  }
  get key() {
    return this.ask.key
  }
  /** No renewal goes past this. */
  get holdUntil() {
    return this.ask.maxHoldMs === void 0 ? Number.POSITIVE_INFINITY : this.acquiredAt + this.ask.maxHoldMs
  }
  /** Exact at any instant, without I/O: a timer may not have had its turn yet. */
  get held() {
    return !this.released && this.loss === void 0 && this.engine.world.now(true) < this.deadline
  }
  get remainingMs() {
    return this.released || this.loss ? 0 : Math.max(this.deadline - this.engine.world.now(true), 0)
  }
  /** Aborts as soon as the lock can no longer be trusted. Made only when somebody asks. */
  get signal() {
    this.settle()
    if (!this.#controller) {
      this.#controller = new AbortController()
      const reason = this.loss ?? this.engine.closingReason
      if (reason) this.#controller.abort(reason)
      else this.#watchHeld()
    }
    return this.#controller.signal
  }
  /** Takes notice of a deadline that has passed before any timer could say so. */
  settle() {
    if (!this.released && !this.loss && this.engine.world.now(true) >= this.deadline) this.#runOut()
  }
  /** Begin to look after it. The face is held until the first beat, so that a forgotten lock is noticed after that. */
  start(face) {
    this.#face = face
    this.#schedule(this.acquiredAt)
  }
  due(now2) {
    if (now2 >= this.deadline) this.#runOut()
    else {
      this.#watchHeld()
      this.#letGoOfFace()
      void this.renew()
    }
  }
  /** One renewal at a time. Whoever wants another one gets its turn when this one is through. */
  async renew(value) {
    while (this.#renewing) await this.#renewing
    if (this.released || this.loss) return { outcome: 'gone' }
    const renewing = this.#renewOnce(value)
    this.#renewing = renewing
    try {
      return await renewing
    } finally {
      this.#renewing = void 0
    }
  }
  /** From now on, although it was taken without. */
  keepRenewed() {
    if (this.autoRenew || this.released || this.loss) return
    this.autoRenew = true
    this.#schedule(this.engine.world.now())
  }
  /**
   * Leaves it in the store, with this value, for `ttlMs` from now on, and looks after it no longer. Only the store can
   * tell whether it was still ours: an answer that comes after the local deadline counts, since others may have read
   * the value by then. `unknown`: it is looked after as before, and this may be tried again.
   */
  async keep(value, ttlMs) {
    while (this.#renewing) await this.#renewing
    if (this.released || this.loss) return { outcome: 'gone' }
    const { courier, beats } = this.engine
    this.#kept = true
    beats.set(this, this.deadline, Number.POSITIVE_INFINITY)
    this.#renewing = courier.renew({ key: this.ask.key, owner: this.owner, ttlMs, value })
    const answer = await this.#renewing
    this.#renewing = void 0
    if (answer.outcome === 'gone') this.lose('gone')
    else if (this.released || this.loss) return answer
    else if (answer.outcome === 'unknown') this.#retrySoon(answer.error)
    else {
      this.end()
      this.engine.events.emit('released', () => ({ ...this.facts(), heldMs: this.heldMs }))
    }
    return answer
  }
  async extend(ttlMs) {
    this.assertHeld()
    const shorter = this.engine.world.now() + ttlMs - driftOf(ttlMs)
    if (shorter < this.deadline) {
      this.#storedUntil ??= this.deadline
      this.deadline = shorter
    }
    this.ttlMs = ttlMs
    const renewed = await this.renew()
    this.assertHeld()
    if (renewed.outcome === 'unknown') {
      throw new StoreUnavailableError(`"${this.ask.name}" could not be extended`, { cause: renewed.error })
    }
  }
  assertHeld() {
    this.settle()
    if (this.loss) throw this.loss
    if (this.released) throw new LockLostError(this.ask.name, 'released')
  }
  lose(why, cause) {
    if (!this.released) this.#lose(why, cause)
  }
  /** We let go of what we believed to hold, and the store said that it had not been ours. */
  wasGone() {
    this.#lose('gone')
  }
  #lose(why, cause) {
    if (this.loss) return
    this.loss = new LockLostError(this.ask.name, why, cause === void 0 ? void 0 : { cause })
    this.#retire()
    this.#controller?.abort(this.loss)
    const error = this.loss
    this.engine.events.emit('lost', () => ({ ...this.facts(), heldMs: this.heldMs, error }))
    if (this.#storedUntil !== void 0 && why !== 'gone') void this.engine.letGo(this)
  }
  /** The instance is closing: work should end, but the lease is still looked after. */
  closing(reason) {
    this.#controller?.abort(reason)
  }
  abandon() {
    if (this.released || this.loss) return
    this.end()
    this.engine.events.emit('abandoned', () => this.facts())
  }
  /** From here on it is not held, whatever the store answers. */
  end() {
    this.released = true
    this.#retire()
  }
  get heldMs() {
    return this.engine.world.now() - this.acquiredAt
  }
  facts() {
    const { name, kind, mode } = this.ask
    return { name, kind, mode, holder: this.owner, fencingToken: this.token, expiresAt: this.expiresAt }
  }
  get expiresAt() {
    return new Date(this.engine.world.date() + this.deadline - this.engine.world.now())
  }
  async #renewOnce(value) {
    const { world, courier, beats } = this.engine
    const sentAt = world.now()
    const ttlMs = Math.ceil(Math.min(this.ttlMs, this.holdUntil - sentAt))
    beats.set(this, this.deadline, Number.POSITIVE_INFINITY)
    const answer = await courier.renew({ key: this.ask.key, owner: this.owner, ttlMs, value })
    this.settle()
    if (this.released || this.loss) {
      if (answer.outcome === 'ours' && this.loss && !this.#kept) void this.engine.letGo(this)
    } else if (answer.outcome === 'ours') {
      this.#failures = 0
      this.deadline = Math.min(sentAt + answer.ttlMs - driftOf(answer.ttlMs), this.holdUntil)
      if (this.#storedUntil !== void 0 && this.#storedUntil <= this.deadline) this.#storedUntil = void 0
      this.#schedule(sentAt)
      this.engine.events.emit('renewed', () => this.facts())
    } else if (answer.outcome === 'gone') this.lose('gone')
    else this.#retrySoon(answer.error)
    return answer
  }
  /** An outage is not a verdict: there is time until the deadline. */
  #retrySoon(error) {
    const { world, beats, events } = this.engine
    const pause = Math.min(Math.max(this.ttlMs / 30, 5) * 2 ** Math.min(this.#failures++, 4), 1e3)
    const again = world.now() + pause * (0.5 + world.random() / 2)
    beats.set(this, Math.min(again, this.deadline), this.ttlMs / 30)
    const { name, kind } = this.ask
    events.emit('error', () => ({ name, kind, doing: 'renew', error }))
  }
  #schedule(from) {
    const { beats } = this.engine
    if (!this.autoRenew || this.#isFinal) beats.set(this, this.deadline, this.ttlMs)
    else {
      const beat = this.ttlMs * BEAT
      beats.set(this, Math.min(from + beat, this.deadline), beat, beat * COALESCE)
    }
  }
  /** The store was asked for all that `maxHold` allows: there is nothing left to renew. */
  get #isFinal() {
    return this.deadline >= this.holdUntil - driftOf(this.ttlMs) - 1
  }
  #runOut() {
    this.lose(this.#isFinal ? 'max-hold' : 'expired')
  }
  #hangOn(lost) {
    if (lost.aborted) this.lose('session', lost.reason)
    else lost.addEventListener('abort', () => this.lose('session', lost.reason), { once: true })
  }
  /** Where watching is cheap, a lock taken away by force is noticed at once and not at the next beat. */
  #watchHeld() {
    if (this.#bell || !this.engine.store.watchesHeld) return
    this.#bell = this.engine.bells.open(this.ask.key)
    this.#bell?.keep()
  }
  #letGoOfFace() {
    const face = this.#face
    if (!face || face instanceof WeakRef) return
    this.#face = new WeakRef(face)
    this.engine.abandoned.register(face, this)
    if (this.#controller) keptBySignal.set(this.#controller.signal, face)
  }
  /** The signal was just handed out: see that it keeps the lock from being taken for abandoned. */
  keepFaceWith(signal, face) {
    if (this.#face instanceof WeakRef) keptBySignal.set(signal, face)
  }
  #retire() {
    this.engine.retired(this)
    this.#face = void 0
    if (this.#bell) {
      this.#bell.leave(this.engine.world.now())
      this.#bell = void 0
    }
  }
}
var keptBySignal = /* @__PURE__ */ new WeakMap()

// src/core/line.ts
var ABREAST = 64
var Line = class {
  key
  #engine
  #first
  #last
  #bell
  #arming
  #pumping = false
  /** How many of them stand in the store's line whoever is before them here. */
  #inStoreLine = 0
  constructor(engine, key) {
    this.#engine = engine
    this.key = key
  }
  /** A bell that rings now would be heard. */
  get armed() {
    if (!this.#bell && this.#engine.bells.live(this.key)) this.#bell = this.#engine.bells.listen(this.key, this.#hear)
    return this.#bell?.live() === true
  }
  join(waiter) {
    waiter.previous = this.#last
    if (this.#last) this.#last.next = waiter
    else this.#first = waiter
    this.#last = waiter
    if (waiter.ask.inStoreLine) this.#inStoreLine++
  }
  leave(waiter) {
    const { previous, next } = waiter
    if (previous) previous.next = next
    else if (this.#first === waiter) this.#first = next
    else return
    if (next) next.previous = previous
    else this.#last = previous
    waiter.previous = waiter.next = void 0
    if (waiter.ask.inStoreLine) this.#inStoreLine--
    if (this.#first) this.#pumpSoon()
    else this.#disband()
  }
  /** Not at once: when many leave together, those in between should not ask just before they leave. */
  #pumpSoon() {
    if (this.#pumping) return
    this.#pumping = true
    queueMicrotask(() => {
      this.#pumping = false
      this.pump()
    })
  }
  /** Lets those ask whose turn it is. Nobody here is overtaken by one who has to stand in the store's line. */
  pump() {
    let abreast = 0
    let toCome = this.#inStoreLine
    for (let waiter = this.#first; waiter; waiter = waiter.next) {
      if (toCome === 0 && abreast > 0 && (waiter.exclusive || abreast >= ABREAST)) return
      if (!waiter.campaigning) void waiter.campaign()
      if (waiter.ask.inStoreLine) toCome--
      if (toCome === 0 && waiter.exclusive) return
      abreast++
    }
  }
  /** True if the subscription has just come to life: then what was asked before may be out of date. */
  async arm() {
    if (this.#bell || !this.#engine.store.watch) return false
    this.#arming ??= this.#hang()
    return this.#arming
  }
  *[Symbol.iterator]() {
    let waiter = this.#first
    while (waiter) {
      const { next } = waiter
      yield waiter
      waiter = next
    }
  }
  async #hang() {
    const bell = this.#engine.bells.listen(this.key, this.#hear)
    if (!bell) return false
    const { ready } = bell
    const alive =
      typeof ready === 'boolean'
        ? ready
        : await this.#engine.courier.within(
            () => ready,
            () => false,
          )
    this.#arming = void 0
    this.#bell = bell
    if (!this.#first) this.#unhang()
    return alive
  }
  #hear = (event) => {
    for (const waiter of this) {
      if (!waiter.campaigning) return
      waiter.hear(event)
    }
  }
  #disband() {
    this.#engine.disbanded(this)
    if (!this.#arming) this.#unhang()
  }
  #unhang() {
    this.#bell?.remove(this.#hear, this.#engine.world.now())
    this.#bell = void 0
  }
}

// src/core/options.ts
init_errors()
init_duration()
init_store()

// src/core/name.ts
init_errors()
function nameFrom(option, name, longest = 255) {
  if (typeof name === 'string' && name.length > 0 && name.length <= longest) {
    if (name.isWellFormed() && !name.includes('\0')) return name
  }
  throw new InvalidOptionError(option, name, `1 to ${longest} characters of well-formed Unicode without NUL`)
}

// src/core/options.ts
var SHORTEST_TTL = 10
var MOST_REMEMBERED = 1e3
var LARGEST_METADATA = 4096
var KNOWN = /* @__PURE__ */ new Set([
  'ttl',
  'wait',
  'signal',
  'mode',
  'metadata',
  'autoRenew',
  'maxHold',
  'nested',
  'weight',
])
var Defaults = class {
  ttlMs
  waitMs
  prefix
  #store
  #plain = /* @__PURE__ */ new Map()
  constructor(store2, { ttl = '30s', wait = '10s', namespace }) {
    this.#store = store2
    this.ttlMs = ttlFrom('ttl', ttl, store2)
    this.waitMs = waitFrom(wait)
    if (namespace !== void 0) nameFrom('namespace', namespace, 100)
    this.prefix = namespace === void 0 ? '' : `${namespace}:`
  }
  key(kind, name) {
    nameFrom('name', name)
    const key = `${kind}:${this.prefix}${name}`
    this.#store.partition?.(key)
    return key
  }
  /** An ask is never changed once it is made, so the plain ones are made once per name. */
  ask(kind, name, options) {
    if (options !== void 0 || kind !== 'lock') return this.#build(kind, name, options)
    let ask = this.#plain.get(name)
    if (!ask) {
      ask = this.#build(kind, name, options)
      if (this.#plain.size >= MOST_REMEMBERED) this.#plain.clear()
      this.#plain.set(name, ask)
    }
    return ask
  }
  #build(kind, name, options) {
    const key = this.key(kind, name)
    const { ttlMs, waitMs } = this
    const ask = {
      name,
      kind,
      key,
      mode: 'exclusive',
      weight: ALL,
      capacity: ALL,
      ttlMs,
      waitMs,
      autoRenew: true,
      maxHoldMs: void 0,
      value: void 0,
      signal: void 0,
    }
    if (options !== void 0) this.#apply(ask, options)
    return ask
  }
  #apply(ask, options) {
    if (typeof options !== 'object' || options === null) throw new InvalidOptionError('options', options, 'an object')
    for (const option in options) {
      if (!KNOWN.has(option)) throw new InvalidOptionError(option, option, 'no value here: there is no such option')
    }
    const { ttl, wait, signal, mode, metadata, autoRenew, maxHold } = options
    if (ttl !== void 0) ask.ttlMs = ttlFrom('ttl', ttl, this.#store)
    if (wait !== void 0) ask.waitMs = waitFrom(wait)
    if (signal !== void 0) ask.signal = signalFrom(signal)
    if (mode !== void 0) setMode(ask, mode)
    if (metadata !== void 0) ask.value = jsonFrom('metadata', metadata, LARGEST_METADATA)
    if (autoRenew !== void 0) ask.autoRenew = flagFrom('autoRenew', autoRenew)
    if (maxHold !== void 0) {
      ask.maxHoldMs = milliseconds('maxHold', maxHold, { min: SHORTEST_TTL })
      ask.ttlMs = Math.min(ask.ttlMs, ask.maxHoldMs)
    }
  }
}
function ttlFrom(option, ttl, store2) {
  const max = store2.maxTtlMs
  return Math.ceil(milliseconds(option, ttl, max === void 0 ? { min: SHORTEST_TTL } : { min: SHORTEST_TTL, max }))
}
function waitFrom(wait) {
  return wait === 'forever' ? Number.POSITIVE_INFINITY : milliseconds('wait', wait, { or: "'forever'" })
}
function setMode(ask, mode) {
  if (mode === 'shared') {
    ask.mode = mode
    ask.weight = 1
  } else if (mode !== 'exclusive') throw new InvalidOptionError('mode', mode, "'exclusive' or 'shared'")
}
function signalFrom(signal) {
  if (signal instanceof AbortSignal) return signal
  throw new InvalidOptionError('signal', signal, 'an AbortSignal')
}
function flagFrom(option, value) {
  if (typeof value === 'boolean') return value
  throw new InvalidOptionError(option, value, 'true or false')
}
function jsonFrom(option, value, most) {
  let text2
  try {
    text2 = JSON.stringify(value)
  } catch {
    text2 = void 0
  }
  if (text2 === void 0) throw new InvalidOptionError(option, value, 'something that JSON can carry')
  if (Buffer.byteLength(text2) <= most) return text2
  throw new InvalidOptionError(option, text2, `at most ${most} bytes of JSON`)
}

// src/core/lock.ts
var leaseOf
var Lock = class {
  #lease
  #releasing
  /** @internal */
  constructor(lease) {
    this.#lease = lease
    lease.start(this)
  }
  /** As it was asked for, without the namespace. */
  get name() {
    return this.#lease.ask.name
  }
  /** Who holds it: host, process, instance and acquisition. Unique for each acquisition. */
  get holder() {
    return this.#lease.owner
  }
  get mode() {
    return this.#lease.ask.mode
  }
  get metadata() {
    const { value } = this.#lease.ask
    return value === void 0 ? void 0 : JSON.parse(value)
  }
  /** Grows with every exclusive grant of this name. Let what you write to refuse a smaller one than it has seen. */
  get fencingToken() {
    return this.#lease.token
  }
  get acquiredAt() {
    const { world } = this.#lease.engine
    return new Date(world.date() - (world.now() - this.#lease.acquiredAt))
  }
  /** Until when it may be trusted, unless it is renewed before. */
  get expiresAt() {
    return this.#lease.expiresAt
  }
  /** 0 once it is not held any more. */
  get remainingMs() {
    return this.#lease.remainingMs
  }
  /** True only while nobody else can hold it. */
  get isHeld() {
    return this.#lease.held
  }
  /** Throws `LockLostError` unless it is held right now. Call it before every step that cannot be undone. */
  assertHeld() {
    this.#lease.assertHeld()
  }
  /** Aborts as soon as the lock can no longer be trusted, with the `LockLostError` as its reason. */
  get signal() {
    const { signal } = this.#lease
    this.#lease.keepFaceWith(signal, this)
    return signal
  }
  /**
   * Hold it for `ttl` from now on; later renewals ask for as much. Rejects with `LockLostError` if it is not ours any
   * more, with `StoreUnavailableError` if the store does not answer (it is then held until `expiresAt`, as before).
   */
  async extend(ttl) {
    await this.#lease.extend(ttlFrom('ttl', ttl, this.#lease.engine.store))
  }
  /** True if it was ours until now. Never rejects; a second call repeats the first answer. */
  release() {
    this.#releasing ??= this.#lease.engine.release(this.#lease)
    return this.#releasing
  }
  toJSON() {
    return {
      name: this.name,
      holder: this.holder,
      mode: this.mode,
      metadata: this.metadata,
      fencingToken: String(this.fencingToken),
      acquiredAt: this.acquiredAt.toISOString(),
      expiresAt: this.expiresAt.toISOString(),
      remainingMs: this.remainingMs,
      isHeld: this.isHeld,
    }
  }
  async [Symbol.asyncDispose]() {
    await this.release()
  }
  static {
    leaseOf = (lock) => lock.#lease
  }
}

// src/core/waiter.ts
init_errors()
var PLACE_MS = 3e3
var FOREIGN_POLL_MS = 250
var NEXT_IN_LINE_MS = 5
var SHORTEST_PAUSE_MS = 10
var LONGEST_PAUSE_MS = 1e3
var BLOCK_MS = 5e3
var LAST_CALL_MS = 500
var WaitEnded = class extends Error {}
var Waiter = class extends Timed {
  ask
  owner
  promise
  campaigning = false
  previous = void 0
  next = void 0
  #engine
  #line
  #since
  #claim
  #resolve
  #reject
  #done = false
  /** Something of ours may be in the store: a place in line, or what an answer that was lost would have told. */
  #mayHold = false
  #inFlight = false
  #refusal
  #refusals = 0
  /** The line became shorter before us since we last asked, without a bell for us. */
  #moved = false
  #failure
  #failures = 0
  /** When the last question was sent that was refused: what is granted later counts from here at least. */
  #contactAt = Number.NEGATIVE_INFINITY
  #stopListening
  #lastCall = false
  #rung = false
  #wake
  #alarm = new Alarm(() => this.ring())
  constructor(engine, line, ask, claim2, since) {
    super()
    this.#engine = engine
    this.#line = line
    this.ask = ask
    this.#claim = claim2
    this.owner = claim2.owner
    this.#since = since
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    if (ask.waitMs < Number.POSITIVE_INFINITY) engine.waits.set(this, since + ask.waitMs, ask.waitMs)
    if (ask.signal) this.#stopListening = onAbort(ask.signal, () => this.fail(ask.signal?.reason))
  }
  get waitedMs() {
    return this.#engine.world.now() - this.#since
  }
  /** Shared claims may ask beside each other; an exclusive one only when it is first. */
  get exclusive() {
    return this.ask.weight === this.ask.capacity
  }
  /** Asks until it is settled. The first answer may already be there. */
  async campaign(first) {
    this.campaigning = true
    let sentAt = first?.sentAt ?? 0
    let answer = first?.answer
    for (;;) {
      if (!answer) {
        const armed = this.#line.armed
        this.#rung = false
        sentAt = this.#engine.world.now()
        answer = await this.#send()
        if (this.#done) return this.#afterwards(answer)
        if (answer.granted === false && !armed && this.#line.armed) this.#rung = true
      }
      if (this.#digest(answer, sentAt)) return
      if (answer.granted === false && (await this.#line.arm())) this.#rung = true
      if (!this.#done && !this.#rung) await this.#pause(this.#patience(answer))
      if (this.#done) return
      answer = void 0
    }
  }
  /** The wait is over. */
  due() {
    const { name, kind } = this.ask
    const { waitedMs } = this
    if (this.#inFlight && this.#engine.store.blocks && !this.#lastCall) return this.#callBack()
    if (this.#failure || (this.#inFlight && !this.#refusal)) {
      const reason = this.#failure?.message ?? `${this.#engine.store.name} did not answer in time`
      const cause = this.#failure
      this.fail(
        new StoreUnavailableError(`"${name}" could not be acquired: ${reason}`, { cause: cause?.cause ?? cause }),
      )
      return
    }
    const heldBy = this.#refusal?.blocker?.owner
    this.#engine.events.emit('timeout', () => ({ name, kind, waitedMs, heldBy }))
    this.fail(new LockTimeoutError(name, { waitedMs, heldBy }))
  }
  /** The server keeps our question open. Ended, it is answered; if it is not, the server is silent. */
  #callBack() {
    this.#lastCall = true
    const { world, waits, courier } = this.#engine
    waits.set(this, world.now() + LAST_CALL_MS, LAST_CALL_MS)
    void courier.release({ key: this.ask.key, owner: this.owner })
  }
  /** Something happened to the key. Events are hints: all but a grant only make us ask sooner. */
  hear(event) {
    if (event.type === 'granted') {
      if (event.owner === this.owner) this.#receive(event)
    } else if (event.type !== 'revoked' && (event.type === 'changed' || !event.owner || event.owner === this.owner)) {
      this.ring()
    }
  }
  ring() {
    this.#rung = true
    this.#wake?.()
  }
  fail(error) {
    if (this.#done) return
    this.#settle()
    this.#reject(error)
    if (this.#mayHold) void this.#engine.letGo({ ask: this.ask, owner: this.owner })
  }
  #send() {
    const { store: store2, courier, world } = this.#engine
    this.#mayHold = true
    if (store2.blocks) {
      const left = this.#since + this.ask.waitMs - world.now()
      this.#claim.blockMs = Math.max(Math.min(BLOCK_MS, left), 0)
    }
    this.#inFlight = true
    const answer = courier.acquire(this.#claim)
    if (answer instanceof Promise) {
      return answer.then((value) => {
        this.#inFlight = false
        return value
      })
    }
    this.#inFlight = false
    return answer
  }
  /** True if that settled it. */
  #digest(answer, sentAt) {
    if (answer.granted === true) {
      if (this.#engine.stale(answer, sentAt)) {
        this.#failed(new StoreUnavailableError(`${this.#engine.store.name} took longer to answer than the ttl lasts`))
        void this.#engine.letGo({ ask: this.ask, owner: answer.owner })
        return this.#done
      }
      this.#settle()
      this.#resolve(this.#engine.hold(this.ask, answer, sentAt, this.#since))
      return true
    }
    if (answer.granted === 'unknown') this.#failed(answer.error)
    else {
      this.#moved = (answer.ahead ?? 0) < (this.#refusal?.ahead ?? 0)
      this.#refusal = answer
      this.#refusals++
      this.#failure = void 0
      this.#failures = 0
      this.#contactAt = sentAt
      this.#mayHold = this.#engine.store.features.line || this.#engine.store.blocks === true
      if (this.ask.onRefusal?.(answer)) this.fail(new WaitEnded())
      else if (this.#lastCall) this.due()
    }
    return this.#done
  }
  #failed(error) {
    this.#failure = error
    this.#failures++
    if (error instanceof InvalidOptionError || error instanceof UnsupportedError) this.fail(error)
    const { name, kind } = this.ask
    this.#engine.events.emit('error', () => ({ name, kind, doing: 'acquire', error }))
  }
  /**
   * Whoever let go handed the lease to us. It began after our last refused question, so it may be counted from there,
   * unless this is news from before that: then its token is not larger than that of the one who was in our way.
   */
  #receive(event) {
    if (this.#done) return
    const before = this.#refusal?.blocker?.token
    const deadline = this.#contactAt + event.ttlMs - driftOf(event.ttlMs)
    if (before === void 0 || before >= event.token || deadline <= this.#engine.world.now()) return this.ring()
    this.#settle()
    const grant = { granted: true, owner: event.owner, token: event.token, ttlMs: event.ttlMs }
    this.#resolve(this.#engine.hold(this.ask, grant, this.#contactAt, this.#since, true))
  }
  /** How long to wait for a bell before asking again. */
  #patience(answer) {
    const { store: store2, world } = this.#engine
    if (answer.granted !== false) return this.#backoff(this.#failures)
    const { blocker, ahead: ahead2 = 0 } = answer
    const { blockMs } = this.#claim
    if (blockMs && world.now() >= this.#contactAt + blockMs * 0.9) return 1
    let pause = store2.features.line ? PLACE_MS / 3 : LONGEST_PAUSE_MS
    if (!this.#line.armed) pause = Math.min(pause, this.#backoff(this.#refusals))
    if (blocker?.foreign) pause = Math.min(pause, FOREIGN_POLL_MS * (0.5 + world.random() / 2))
    if (blocker?.ttlMs !== void 0 && (ahead2 === 0 || !this.exclusive)) {
      pause = Math.min(pause, blocker.ttlMs + 1 + ahead2 * NEXT_IN_LINE_MS)
    }
    if (this.#moved && !this.exclusive) pause = Math.min(pause, this.#backoff(1))
    return Math.max(pause, 2)
  }
  /** Exponential with full jitter. */
  #backoff(attempts) {
    const most = Math.min(SHORTEST_PAUSE_MS * 2 ** Math.min(attempts, 10), LONGEST_PAUSE_MS)
    return SHORTEST_PAUSE_MS / 2 + this.#engine.world.random() * most
  }
  #pause(ms) {
    return new Promise((resolve) => {
      this.#wake = () => {
        this.#wake = void 0
        this.#engine.waits.clear(this.#alarm)
        resolve()
      }
      this.#engine.waits.set(this.#alarm, this.#engine.world.now() + ms, ms >= 900 ? 1e3 : 0, ms * 0.1)
    })
  }
  #settle() {
    this.#done = true
    this.#engine.waits.clear(this)
    this.#stopListening?.()
    this.#wake?.()
    this.#line.leave(this)
  }
  /**
   * An answer came after the wait had ended. Unless a bell meanwhile gave us the very grant it speaks of, it tells of
   * something that nobody will ever release: the store may have heard the question after our release.
   */
  #afterwards(answer) {
    const owner2 = answer.granted === true ? answer.owner : this.owner
    if (answer.granted === false && !this.#engine.store.features.line) return
    if (!this.#engine.holds(this.ask.key, owner2)) void this.#engine.letGo({ ask: this.ask, owner: owner2 })
  }
}

// src/core/engine.ts
var YES = Promise.resolve(true)
var CLEAN_UP_TRIES = 5
var Engine = class {
  store
  world
  courier
  events = new Events()
  identity
  /** When leases are due. Every held lease is in here exactly once. */
  beats
  /** When waits end or look again. They keep the process alive: somebody awaits them. */
  waits
  bells
  abandoned
  closingReason = void 0
  #lines = /* @__PURE__ */ new Map()
  #immediate
  #unsubscribe
  #cleaning = /* @__PURE__ */ new Set()
  #hurries = /* @__PURE__ */ new Set()
  #onIdle
  #closed
  constructor(store2, world) {
    this.store = store2
    this.world = world
    this.courier = new Courier(store2, world, (claim2, grant) => this.#stray(claim2, grant))
    this.identity = new Identity(world)
    this.beats = new Timers(world)
    this.waits = new Timers(world, true)
    this.bells = new Bells(store2, this.beats, (key, owner2) => this.#find(key, owner2)?.lose('revoked'))
    this.abandoned = new FinalizationRegistry((lease) => lease.abandon())
    this.#immediate = store2.immediate === true
    this.#unsubscribe = store2.onDoubt?.(() => this.#verifyAll())
  }
  /** Waits for `ask.waitMs`; rejects with `LockTimeoutError` if it stayed busy. */
  acquire(ask) {
    const refused = this.#refuseEarly(ask)
    if (refused) return refused
    if (ask.waitMs === 0 || ask.steal) return this.#once(ask)
    const claim2 = this.#claim(ask, PLACE_MS)
    let line = this.#lines.size === 0 ? void 0 : this.#lines.get(ask.key)
    let answer
    if (!line && this.#immediate) {
      answer = this.courier.acquire(claim2)
      if (answer.granted === true && answer.decidedAt !== void 0) {
        return Promise.resolve(this.hold(ask, answer, answer.decidedAt, answer.decidedAt))
      }
    }
    const since = this.world.now()
    if (!line) this.#lines.set(ask.key, (line = new Line(this, ask.key)))
    const waiter = new Waiter(this, line, ask, claim2, since)
    line.join(waiter)
    if (answer?.granted === false) void waiter.campaign({ answer, sentAt: since })
    else line.pump()
    return waiter.promise
  }
  /** One attempt. Null when busy; rejects at once when the store fails. */
  tryAcquire(ask) {
    return this.#refuseEarly(ask) ?? this.#attempt(ask).then((outcome) => (outcome instanceof Lock ? outcome : null))
  }
  /** Whether the store can decide these in one call. */
  atomicFor(asks) {
    const { features, maxBatch = Number.POSITIVE_INFINITY } = this.store
    if (!features.atomic || asks.length > maxBatch) return false
    return new Set(asks.map((ask) => this.store.partition?.(ask.key))).size === 1
  }
  /** One attempt at all of them. Undefined if they cannot be had together right now. */
  async acquireTogether(asks) {
    const refused = this.#refuseEarly(asks[0])
    if (refused) return refused
    const claims = asks.map((ask) => this.#claim(ask, void 0))
    const sentAt = this.world.now()
    const answers = await this.courier.acquireTogether(claims)
    const usable =
      !this.closingReason && answers.every((answer) => answer.granted === true && !this.stale(answer, sentAt))
    if (usable) return asks.map((ask, i) => this.hold(ask, answers[i], sentAt, sentAt))
    for (const [i, answer] of answers.entries()) {
      const owner2 = answer.granted === true ? answer.owner : claims[i].owner
      if (answer.granted !== false) void this.letGo({ ask: asks[i], owner: owner2 })
    }
    return void 0
  }
  /** Asks what a store may or may not be able to answer: to look, or to break glass. */
  async look(what, call) {
    let failure
    const failed = (error) => {
      failure = error
      return void 0
    }
    const answer = await this.courier.within(() => call(this.store), failed)
    if (answer !== void 0) return answer
    throw failure ?? new UnsupportedError(`${what} is not supported by the ${this.store.name} store`)
  }
  /** Those in this process who wait, in no particular order between names. */
  *waiting() {
    for (const line of this.#lines.values()) yield* line
  }
  /** A grant becomes a lock. `provisional`: it was pushed to us for a short time only, and has to be renewed at once. */
  hold(ask, grant, sentAt, since, provisional = false) {
    const lease = new Lease(this, ask, grant, sentAt)
    const lock = new Lock(lease)
    if (provisional) void lease.renew()
    if (this.events.has('acquired'))
      this.events.emit('acquired', () => ({ ...lease.facts(), waitedMs: this.world.now() - since }))
    return lock
  }
  /** Whether a grant came too late to be of any use. */
  stale(grant, sentAt) {
    return sentAt + grant.ttlMs - driftOf(grant.ttlMs) <= this.world.now()
  }
  release(lease) {
    if (!this.#immediate) lease.settle()
    if (lease.loss) {
      if (lease.loss.why !== 'gone' && lease.loss.why !== 'revoked') void this.letGo(lease)
      return Promise.resolve(false)
    }
    lease.end()
    const answer = this.courier.release(lease)
    if (answer instanceof Promise) return this.#released(lease, answer)
    if (answer.outcome !== 'released') return this.#released(lease, Promise.resolve(answer))
    if (this.events.has('released')) this.#tellReleased(lease)
    return YES
  }
  /**
   * Takes back what may be ours in the store: in the background, with its own time, never with the caller's signal,
   * which may be why we clean up.
   */
  letGo({ ask, owner: owner2 }) {
    const cleaning = this.#cleanUp(ask, owner2).finally(() => this.#cleaning.delete(cleaning))
    this.#cleaning.add(cleaning)
    return cleaning
  }
  /** Whether we believe to hold this very grant. */
  holds(key, owner2) {
    return this.#find(key, owner2) !== void 0
  }
  retired(lease) {
    this.beats.clear(lease)
    this.#onIdle?.()
  }
  disbanded(line) {
    if (this.#lines.get(line.key) === line) this.#lines.delete(line.key)
  }
  *leases() {
    for (const item of this.beats) if (item instanceof Lease) yield item
  }
  async releaseAll() {
    await Promise.all([...this.leases()].map((lease) => this.release(lease)))
  }
  /** No new grants; work is told to end and may do so while leases are renewed; then everything is released. */
  close(graceMs) {
    this.#closed ??= this.#close(graceMs)
    return this.#closed
  }
  async #close(graceMs) {
    this.closingReason = new ClosedError('closing: locks.close() was called')
    for (const line of [...this.#lines.values()]) for (const waiter of line) waiter.fail(this.closingReason)
    for (const lease of [...this.leases()]) lease.closing(this.closingReason)
    await this.#idle(graceMs)
    await this.releaseAll()
    for (const hurry of this.#hurries) hurry()
    await Promise.all(this.#cleaning)
    this.bells.close()
    this.#unsubscribe?.()
    this.waits.stop()
    this.beats.stop()
  }
  #refuseEarly(ask) {
    if (this.closingReason)
      return Promise.reject(new ClosedError(`"${ask.name}" cannot be acquired: locks.close() was called`))
    if (ask.signal?.aborted) return Promise.reject(ask.signal.reason)
    return void 0
  }
  #claim(ask, placeMs) {
    const { key, weight, capacity, ttlMs, value, announce, steal } = ask
    const owner2 = ask.owner ?? this.identity.next()
    return { key, owner: owner2, weight, capacity, ttlMs, value, placeMs, blockMs: void 0, announce, steal }
  }
  async #once(ask) {
    const outcome = await this.#attempt(ask)
    if (outcome instanceof Lock) return outcome
    const { name, kind } = ask
    const facts2 = { waitedMs: 0, heldBy: outcome.heldBy }
    this.events.emit('timeout', () => ({ name, kind, ...facts2 }))
    throw new LockTimeoutError(name, facts2)
  }
  async #attempt(ask) {
    const claim2 = this.#claim(ask, void 0)
    const sentAt = this.world.now()
    const asked = this.courier.acquire(claim2)
    const answer = asked instanceof Promise && ask.signal ? await this.#unlessAborted(asked, ask, claim2) : await asked
    if (answer.granted === true) {
      if (!this.closingReason && !this.stale(answer, sentAt)) return this.hold(ask, answer, sentAt, sentAt)
      void this.letGo({ ask, owner: answer.owner })
      if (this.closingReason) throw this.closingReason
      throw new StoreUnavailableError(`${this.store.name} took longer to answer than the ttl lasts`)
    }
    if (answer.granted === false) {
      ask.onRefusal?.(answer)
      return { heldBy: answer.blocker?.owner }
    }
    void this.letGo({ ask, owner: claim2.owner })
    throw answer.error
  }
  #unlessAborted(asked, ask, claim2) {
    const signal = ask.signal
    return new Promise((resolve, reject) => {
      const stopListening = onAbort(signal, () => {
        stopListening()
        reject(signal.reason)
        void asked.then((answer) => {
          const owner2 = answer.granted === true ? answer.owner : claim2.owner
          if (answer.granted !== false) void this.letGo({ ask, owner: owner2 })
        })
      })
      void asked.then((answer) => {
        stopListening()
        resolve(answer)
      })
    })
  }
  async #released(lease, asked) {
    const answer = await asked
    if (answer.outcome === 'released') {
      this.#tellReleased(lease)
      return true
    }
    if (answer.outcome === 'gone') lease.wasGone()
    else {
      const { name, kind } = lease.ask
      const error = answer.error
      this.events.emit('error', () => ({ name, kind, doing: 'release', error }))
      void this.letGo(lease)
    }
    return false
  }
  #tellReleased(lease) {
    this.events.emit('released', () => ({ ...lease.facts(), heldMs: lease.heldMs }))
  }
  async #cleanUp(ask, owner2) {
    for (let tries = 0; tries < CLEAN_UP_TRIES; tries++) {
      const { outcome } = await this.courier.release({ key: ask.key, owner: owner2 })
      if (outcome !== 'unknown' || this.closingReason) return
      await this.#breathe(100 * 2 ** tries * (0.5 + this.world.random() / 2))
    }
  }
  /** Between two tries in the background. Ends at once when the instance closes, which waits for it. */
  async #breathe(ms) {
    let hurry
    await new Promise((resolve) => {
      const cancel = this.world.after(ms, resolve)
      hurry = () => (cancel(), resolve())
      this.#hurries.add(hurry)
    })
    this.#hurries.delete(hurry)
  }
  /**
   * A grant whose asker was told «unknown» long ago must not stay until its time passes. But the asker may have asked
   * again as the same owner, and hold it by now or be about to: then it is not astray.
   */
  #stray({ key, owner: owner2 }, grant) {
    const waits = [...(this.#lines.get(key) ?? [])].some((waiter) => waiter.owner === owner2)
    if (!waits && !this.holds(key, grant.owner)) void this.courier.release({ key, owner: grant.owner })
  }
  #find(key, owner2) {
    for (const lease of this.leases()) if (lease.owner === owner2 && lease.ask.key === key) return lease
    return void 0
  }
  #verifyAll() {
    for (const lease of [...this.leases()]) void lease.renew()
  }
  async #idle(graceMs) {
    const busy = () => !this.leases().next().done
    if (!busy()) return
    await new Promise((resolve) => {
      const cancel = this.world.after(graceMs, resolve, true)
      this.#onIdle = () => {
        if (busy()) return
        cancel()
        resolve()
      }
    })
    this.#onIdle = void 0
  }
}

// src/locks.ts
init_errors()
init_duration()
init_world()

// src/core/nesting.ts
init_errors()
import { AsyncLocalStorage } from 'node:async_hooks'
var frames = new AsyncLocalStorage()
function refuseSelfDeadlock(store2, keys, nameOf) {
  for (let frame = frames.getStore(); frame; frame = frame.outer) {
    if (frame.over || frame.store !== store2) continue
    const own = keys.find((key) => frame?.keys.includes(key))
    if (own !== void 0) throw new SelfDeadlockError(nameOf(own))
  }
}
async function holding(store2, keys, fn) {
  const frame = { store: store2, keys, outer: frames.getStore(), over: false }
  try {
    return await frames.run(frame, fn)
  } finally {
    frame.over = true
  }
}

// src/primitives/all.ts
init_errors()
var LockGroup = class {
  #locks
  #signal
  #releasing
  /** @internal */
  constructor(locks2) {
    this.#locks = locks2
  }
  /** Each lock, in the order of its name. */
  get locks() {
    return this.#locks
  }
  get names() {
    return this.#locks.map((lock) => lock.name)
  }
  /** The fencing token of each name. */
  get fencingTokens() {
    return new Map(this.#locks.map((lock) => [lock.name, lock.fencingToken]))
  }
  /** True only while all of them are held. */
  get isHeld() {
    return this.#locks.every((lock) => lock.isHeld)
  }
  /** Until when all of them may be trusted. */
  get remainingMs() {
    return Math.min(...this.#locks.map((lock) => lock.remainingMs))
  }
  /** Throws the `LockLostError` of the first that is not held any more. */
  assertHeld() {
    for (const lock of this.#locks) lock.assertHeld()
  }
  /** Aborts as soon as one of them can no longer be trusted. */
  get signal() {
    const signals = this.#locks.map((lock) => lock.signal)
    this.#signal ??= AbortSignal.any(signals)
    return this.#signal
  }
  async extend(ttl) {
    await Promise.all(this.#locks.map((lock) => lock.extend(ttl)))
  }
  /** True if all were ours until now. */
  release() {
    this.#releasing ??= Promise.all(this.#locks.map((lock) => lock.release())).then((all) => all.every(Boolean))
    return this.#releasing
  }
  async [Symbol.asyncDispose]() {
    await this.release()
  }
}
async function acquireAll(engine, defaults, names, options) {
  return acquireEach(engine, asksFor(defaults, names, options))
}
async function acquireEach(engine, asks) {
  const { waitMs, signal } = asks[0]
  const since = engine.world.now()
  if (asks.length > 1 && engine.atomicFor(asks)) {
    const together = await engine.acquireTogether(asks)
    if (together && signal?.aborted) await new LockGroup(together).release()
    signal?.throwIfAborted()
    if (together) return new LockGroup(together)
  }
  return new LockGroup(await oneByOne(engine, asks, waitMs, since))
}
async function withLocks(engine, defaults, names, fn, options = {}) {
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the locks')
  const asks = asksFor(defaults, names, options)
  const keys = asks.map((ask) => ask.key)
  if (options.nested === void 0) {
    refuseSelfDeadlock(engine.store, keys, (key) => asks.find((ask) => ask.key === key)?.name ?? key)
  } else if (options.nested !== 'wait') throw new InvalidOptionError('nested', options.nested, "'wait'")
  const group = await acquireEach(engine, asks)
  let result
  try {
    result = await holding(engine.store, keys, () => fn(group))
  } catch (error) {
    await group.release()
    throw error
  }
  for (const lock of group.locks) leaseOf(lock).settle()
  await group.release()
  for (const lock of group.locks) {
    const { loss } = leaseOf(lock)
    if (loss) throw loss
  }
  return result
}
function asksFor(defaults, names, options) {
  if (!Array.isArray(names) || names.length === 0) throw new InvalidOptionError('names', names, 'one or more names')
  const asks = [...new Set(names)].map((name) => defaults.ask('lock', name, options))
  return asks.sort((a, b) => (a.name < b.name ? -1 : 1))
}
async function oneByOne(engine, asks, waitMs, since) {
  const waitedMs = () => engine.world.now() - since
  const held = []
  try {
    for (const ask of asks) held.push(await engine.acquire({ ...ask, waitMs: Math.max(waitMs - waitedMs(), 0) }))
    for (const lock of held) lock.assertHeld()
    return held
  } catch (error) {
    await Promise.all(held.map((lock) => lock.release()))
    if (error instanceof LockTimeoutError) {
      throw new LockTimeoutError(error.lock, { waitedMs: waitedMs(), heldBy: error.heldBy })
    }
    throw error
  }
}

// src/primitives/election.ts
init_errors()
init_duration()

// src/primitives/election-term.ts
import { AsyncLocalStorage as AsyncLocalStorage2 } from 'node:async_hooks'
init_errors()
init_duration()
var inside = new AsyncLocalStorage2()
var Term = class {
  #world
  #lock
  #rules
  #controller = new AbortController()
  #stopListening = []
  #letGo
  #tellLetGo
  #toldToEnd = false
  #onOvertime
  #cancelDrain
  #onEnd
  #working = false
  /** When the lease was let go, or known to be lost. */
  #overAt
  constructor(world, lock, rules) {
    this.#world = world
    this.#lock = lock
    this.#rules = rules
    this.#letGo = new Promise((resolve) => (this.#tellLetGo = resolve))
    const { signal } = lock
    const tell = () => {
      if (leaseOf(lock).loss) this.#overAt ??= Math.min(world.now(), leaseOf(lock).deadline)
      this.#controller.abort(signal.reason)
    }
    signal.addEventListener('abort', tell, { once: true })
    if (signal.aborted) tell()
  }
  get lock() {
    return this.#lock
  }
  /** Work is still going on, whether or not the term is over. */
  get working() {
    return this.#working
  }
  /** For how long work has been going on although the lease is not ours any more. */
  get staleMs() {
    if (!this.#working || this.#lock.isHeld) return 0
    const now2 = this.#world.now(true)
    this.#overAt ??= Math.min(now2, leaseOf(this.#lock).deadline)
    return Math.max(now2 - this.#overAt, 0)
  }
  /** Tells the work to end. Settles when the lease has been let go; if the work itself asks, at once. */
  async resign() {
    this.#stepDown(new LeaseholdError('RESIGNED', `stepping down from "${this.#rules.name}"`))
    if (!inside.getStore()?.includes(this)) await this.#letGo
  }
  /** Settles when the work has ended, or will not be waited for any longer; rejects with what the work threw. */
  async lead(work) {
    for (const signal of this.#rules.ends) this.#obey(signal)
    this.#working = true
    const working = inside
      .run([...(inside.getStore() ?? []), this], async () => void (await work(this.#leadership())))
      .finally(() => {
        this.#working = false
      })
    working.catch(() => {})
    try {
      const inTime = await this.#within(working)
      await this.#release()
      if (!inTime) await this.#outlast(working)
    } catch (error) {
      await this.#release()
      if (!this.#isObedience(error)) throw error
    } finally {
      for (const stop of this.#stopListening) stop()
    }
  }
  #leadership() {
    const lock = this.#lock
    const { signal } = this.#controller
    return {
      term: lock.fencingToken,
      get signal() {
        void lock.signal
        return signal
      },
    }
  }
  #obey(signal) {
    const obey = () => {
      this.#stepDown(signal.reason)
      this.#onEnd?.()
    }
    if (signal.aborted) obey()
    else this.#stopListening.push(onAbort(signal, obey))
  }
  #stepDown(reason) {
    this.#controller.abort(reason)
    if (this.#toldToEnd) return
    this.#toldToEnd = true
    const { drainMs } = this.#rules
    this.#cancelDrain = this.#world.after(drainMs, () => this.#onOvertime?.(), true)
  }
  /** False: the work was told to end, and did not do so within the drain time. */
  async #within(working) {
    const overtime = new Promise((resolve) => (this.#onOvertime = () => resolve(false)))
    try {
      return await Promise.race([working.then(() => true), overtime])
    } finally {
      this.#onOvertime = void 0
      this.#cancelDrain?.()
    }
  }
  /**
   * The lease is gone and the work is not. A new campaign would set more work beside it, so it is waited for; but not by
   * somebody who wants to end.
   */
  async #outlast(working) {
    const { name, drainMs, ends } = this.#rules
    const ended = new Promise((resolve) => (this.#onEnd = resolve))
    if (ends.some((signal) => signal.aborted)) this.#onEnd?.()
    await Promise.race([working, ended])
    if (!this.#working) return
    throw new LeaseholdError(
      'DRAIN_TIMEOUT',
      `the work of "${name}" did not end within ${formatDuration(drainMs)} of being told to: it still runs, and another may lead`,
    )
  }
  /** Only when the work has ended or had its time: a lease let go before would let two lead at once. */
  async #release() {
    await this.#lock.release()
    this.#overAt ??= this.#world.now()
    this.#tellLetGo()
  }
  /** Work that was told to stop and throws for that reason has done what it was told. */
  #isObedience(error) {
    const { signal } = this.#controller
    if (!signal.aborted) return false
    if (error === signal.reason || error === leaseOf(this.#lock).loss) return true
    if (error instanceof LockLostError) return error.lock === this.#rules.name
    return error instanceof ClosedError || (error instanceof Error && error.name === 'AbortError')
  }
}

// src/primitives/observe.ts
var LOOK_AGAIN_MS = 1e3
var POLL_MS = 250
var DONE = { done: true, value: void 0 }
function observe(engine, key, look2, ends) {
  return new Observer(engine, key, look2, ends)
}
var Observer = class {
  #engine
  #key
  #look
  #ends
  #stopListening
  #bell
  #last
  #rung = false
  #wake
  #over = false
  #ended
  #tellEnded
  /** One answer after the other, in the order of the questions. */
  #turn = Promise.resolve()
  constructor(engine, key, look2, ends) {
    this.#engine = engine
    this.#key = key
    this.#look = look2
    this.#ends = ends
    this.#ended = new Promise((resolve) => (this.#tellEnded = resolve))
  }
  [Symbol.asyncIterator]() {
    return this
  }
  next() {
    const turn = this.#turn.then(() => this.#next())
    this.#turn = turn.catch(() => {})
    return turn
  }
  async return() {
    this.#end()
    return DONE
  }
  async #next() {
    await this.#start()
    while (!this.#over) {
      this.#rung = false
      const now2 = await this.#unlessOver(this.#look().catch(() => null))
      if (this.#over) break
      if (now2 && isNews(now2, this.#last)) {
        this.#last = now2
        return { done: false, value: now2 }
      }
      if (!this.#rung) await this.#pause()
    }
    return DONE
  }
  /** Nothing is listened to before somebody asks, so an iterator that is never used costs nothing. */
  async #start() {
    if (this.#stopListening || this.#over) return
    this.#stopListening = this.#ends.map((signal) => onAbort(signal, () => this.#end()))
    if (this.#ends.some((signal) => signal.aborted)) return this.#end()
    const bell = this.#engine.bells.listen(this.#key, this.#ring)
    this.#bell = bell
    if (!bell || typeof bell.ready === 'boolean') return
    const { ready } = bell
    await this.#unlessOver(
      this.#engine.courier.within(
        () => ready,
        () => false,
      ),
    )
  }
  #ring = () => {
    this.#rung = true
    this.#wake?.()
  }
  async #unlessOver(promise) {
    return Promise.race([promise, this.#ended.then(() => null)])
  }
  #pause() {
    return new Promise((resolve) => {
      const cancel = this.#engine.world.after(this.#bell?.live() ? LOOK_AGAIN_MS : POLL_MS, () => this.#wake?.(), true)
      this.#wake = () => {
        this.#wake = void 0
        cancel()
        resolve()
      }
    })
  }
  #end() {
    if (this.#over) return
    this.#over = true
    for (const stop of this.#stopListening ?? []) stop()
    this.#bell?.remove(this.#ring, this.#engine.world.now())
    this.#tellEnded()
    this.#wake?.()
  }
}
function isNews(now2, last) {
  if (!last || now2.term > last.term) return true
  return now2.term === last.term && JSON.stringify(now2.value) !== JSON.stringify(last.value)
}

// src/primitives/election.ts
var BREATHER_MS = 100
var LARGEST_VALUE = 4096
var Election = class {
  name
  #engine
  #ask
  #drainMs
  #closing
  #value
  /** The latest. */
  #term
  #running = false
  /** @internal */
  constructor(engine, defaults, name, { ttl, value = null, drain = '10s' }, closing) {
    const { store: store2 } = engine
    if (!store2.features.values || !store2.inspect) {
      throw new UnsupportedError(
        `an election needs a store that shows who leads, and the ${store2.name} store cannot: use the memory, SQLite, Redis or PostgreSQL lease-table store; or withLock, if nobody has to see who leads`,
      )
    }
    this.#engine = engine
    this.name = name
    this.#ask = defaults.ask('election', name, ttl === void 0 ? { wait: 'forever' } : { ttl, wait: 'forever' })
    this.#drainMs = milliseconds('drain', drain)
    this.#value = jsonFrom('value', value, LARGEST_VALUE)
    this.#closing = closing
  }
  /** Whether this instance leads, exact at any instant by the local clock. */
  get isLeader() {
    return this.#term?.lock.isHeld === true
  }
  /**
   * Campaigns, leads, and campaigns again, until `signal` aborts or the instance closes. When the term ends (lost,
   * resigned, or `signal`), the work's own signal aborts, and the next campaign begins when the work has ended. What the
   * work throws, this throws. Work that outlasts its drain time once `signal` aborted: `DRAIN_TIMEOUT`.
   */
  async run(work, options = {}) {
    if (typeof work !== 'function') throw new InvalidOptionError('work', work, 'a function to run while leading')
    const signal = options.signal === void 0 ? void 0 : signalFrom(options.signal)
    if (this.#running || this.#term?.working) {
      throw new LeaseholdError('ALREADY_RUNNING', `this election of "${this.name}" is already running`)
    }
    if (this.#engine.closingReason) {
      throw new ClosedError(`"${this.name}" cannot be campaigned for: locks.close() was called`)
    }
    this.#running = true
    try {
      await this.#reign(work, signal)
    } finally {
      this.#running = false
    }
  }
  /**
   * Steps down: the work is told to end, and the next one leads as soon as it has. Settles when the lease has been let
   * go; called by the work itself, at once. Does nothing if not leading.
   */
  async resign() {
    if (this.isLeader) await this.#term?.resign()
  }
  /**
   * Tells everybody who observes something else about this leader, in this term and in later ones of this object.
   * Rejects if this instance does not lead.
   */
  async proclaim(value) {
    const text2 = jsonFrom('value', value, LARGEST_VALUE)
    const lock = this.#term?.lock
    if (!lock?.isHeld) {
      throw new LeaseholdError(
        'NOT_LEADER',
        `only the leader of "${this.name}" can proclaim, and this one does not lead`,
      )
    }
    const renewed = await leaseOf(lock).renew(text2)
    lock.assertHeld()
    if (renewed.outcome === 'unknown') {
      throw new StoreUnavailableError(`"${this.name}" could not be proclaimed`, { cause: renewed.error })
    }
    this.#value = text2
  }
  /** Who leads now, or null. */
  async leader() {
    return currentLeader(this.#engine, this.#ask.key)
  }
  /**
   * The leader now, and each one after it, with its value whenever that changes. Terms come in order; one that was over
   * before anyone could look may be left out, the latest never is. Ends when `signal` aborts, with `return()` (which
   * `break` calls), and when the instance closes. An outage delays it and does not end it.
   */
  observe(options = {}) {
    const ends = [this.#closing]
    if (options.signal !== void 0) ends.push(signalFrom(options.signal))
    return observe(this.#engine, this.#ask.key, () => this.leader(), ends)
  }
  /** Whether work goes on under a term that is over. */
  health(options = {}) {
    const maxStale = milliseconds('maxStale', options.maxStale ?? '10s')
    const staleMs = this.#term?.staleMs ?? 0
    return { healthy: staleMs <= maxStale, isLeader: this.isLeader, staleMs }
  }
  async #reign(work, signal) {
    const { world } = this.#engine
    const ends = signal ? [signal, this.#closing] : [this.#closing]
    const over = () => ends.some((end) => end.aborted)
    while (!over()) {
      const lock = await this.#campaign(signal, over)
      if (!lock) return
      const began = world.now()
      this.#term = new Term(world, lock, { name: this.name, drainMs: this.#drainMs, ends })
      await this.#term.lead(work)
      if (!over() && world.now() - began < BREATHER_MS) await this.#breathe(ends)
    }
  }
  async #campaign(signal, over) {
    let lock
    try {
      lock = await this.#engine.acquire({ ...this.#ask, value: this.#value, signal, announce: true })
    } catch (error) {
      if (over()) return void 0
      throw error
    }
    if (!over()) return lock
    await lock.release()
    return void 0
  }
  async #breathe(ends) {
    const { world } = this.#engine
    let listeners = []
    await new Promise((resolve) => {
      const cancel = world.after(BREATHER_MS * (0.5 + world.random()), resolve, true)
      listeners = ends.map((signal) => onAbort(signal, () => (cancel(), resolve())))
    })
    for (const stop of listeners) stop()
  }
}
async function currentLeader(engine, key) {
  const { holders } = await engine.look('election', (store2) => store2.inspect?.(key))
  const [holder] = holders
  if (!holder || holder.token === void 0) return null
  return { leader: holder.owner, term: holder.token, value: parsed(holder.value) }
}
function parsed(value) {
  if (value === void 0) return null
  try {
    return JSON.parse(value)
  } catch {
    return value
  }
}

// src/primitives/limiter.ts
init_errors()

// src/primitives/limiter-blocks.ts
var MOST_BLOCKS = 5e4
var Blocks = class {
  #blocks = /* @__PURE__ */ new Map()
  /** The block in the way of this cost, if any. */
  find(key, cost, now2) {
    const block = this.#blocks.get(key)
    if (block === void 0) return void 0
    if (block.until > now2) return cost >= block.cost ? block : void 0
    this.#blocks.delete(key)
    return void 0
  }
  add(key, block, now2) {
    const before = this.#blocks.get(key)
    if (before && before.until > now2 && before.cost < block.cost) return
    if (!before && this.#blocks.size >= MOST_BLOCKS) {
      const oldest = this.#blocks.keys().next().value
      if (oldest !== void 0) this.#blocks.delete(oldest)
    }
    this.#blocks.set(key, block)
  }
}

// src/primitives/limiter-line.ts
var SHORTEST_PAUSE_MS2 = 1
var WaitingLine = class {
  #world
  #take
  #onEmpty
  #waiters = /* @__PURE__ */ new Set()
  #asking = false
  #wake
  constructor(world, take2, onEmpty) {
    this.#world = world
    this.#take = take2
    this.#onEmpty = onEmpty
  }
  wait(cost, signals) {
    return new Promise((resolve, reject) => {
      const cancel = (event) => {
        const first = this.#waiters.values().next().value === waiter
        waiter.leave()
        reject(event.target.reason)
        if (first) this.#wake?.()
      }
      const waiter = {
        cost,
        resolve,
        reject,
        leave: () => {
          this.#waiters.delete(waiter)
          for (const signal of signals) signal.removeEventListener('abort', cancel)
        },
      }
      for (const signal of signals) signal.addEventListener('abort', cancel, { once: true })
      this.#waiters.add(waiter)
      if (!this.#asking) void this.#serve()
    })
  }
  async #serve() {
    this.#asking = true
    let room = 0
    while (this.#waiters.size > 0) {
      const { first, cost, many } = this.#front(room)
      room = 0
      try {
        const answer = await this.#take(cost)
        if (answer.allowed) {
          this.#admit(cost, answer)
          room = answer.remaining
        } else if (!many && this.#waiters.has(first)) await this.#pause(answer.retryAfterMs)
      } catch (error) {
        for (const waiter of [...this.#waiters]) {
          waiter.leave()
          waiter.reject(error)
        }
      }
    }
    this.#asking = false
    this.#onEmpty()
  }
  /** What the first costs, and as many after it as there was room for a moment ago. */
  #front(room) {
    const first = this.#waiters.values().next().value
    let cost = 0
    let count = 0
    for (const waiter of this.#waiters) {
      if (count > 0 && cost + waiter.cost > room) break
      cost += waiter.cost
      count++
    }
    return { first, cost, many: count > 1 }
  }
  /** Who left while we asked leaves what was taken for him to those behind. */
  #admit(cost, answer) {
    let left = cost
    for (const waiter of [...this.#waiters]) {
      if (waiter.cost > left) return
      left -= waiter.cost
      waiter.leave()
      waiter.resolve(answer)
    }
  }
  async #pause(ms) {
    await new Promise((resolve) => {
      const cancel = this.#world.after(Math.max(ms, SHORTEST_PAUSE_MS2), resolve, true)
      this.#wake = () => {
        cancel()
        resolve()
      }
    })
    this.#wake = void 0
  }
}

// src/primitives/limiter-options.ts
init_errors()
init_duration()
var MOST_LIMITS = 8
var LARGEST = 1e12
var OF_A_LIMIT = ['limit', 'per', 'burst', 'algorithm']
function limitsFrom(options) {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidOptionError('options', options, 'an object such as { limit: 10, per: "1s" }')
  }
  if (!('limits' in options)) {
    refuseUnknown(options, [...OF_A_LIMIT, 'onStoreError'])
    return [limitFrom('', options)]
  }
  refuseUnknown(options, ['limits', 'onStoreError'])
  const { limits } = options
  if (!Array.isArray(limits) || limits.length === 0 || limits.length > MOST_LIMITS) {
    throw new InvalidOptionError('limits', limits, `1 to ${MOST_LIMITS} limits such as { limit: 10, per: "1s" }`)
  }
  return limits.map((one, i) => {
    if (typeof one !== 'object' || one === null) {
      throw new InvalidOptionError(`limits[${i}]`, one, 'a limit such as { limit: 10, per: "1s" }')
    }
    refuseUnknown(one, OF_A_LIMIT)
    return limitFrom(`limits[${i}].`, one)
  })
}
function policyFrom(policy) {
  if (policy === void 0) return 'throw'
  if (policy === 'throw' || policy === 'allow' || policy === 'deny') return policy
  const local = typeof policy === 'object' && policy !== null ? policy.local : void 0
  if (typeof local === 'number' && local > 0 && local <= 1) return { local }
  throw new InvalidOptionError(
    'onStoreError',
    policy,
    "'throw', 'allow', 'deny' or { local: share } with a share above 0 and up to 1",
  )
}
function costFrom(cost) {
  if (typeof cost === 'number' && cost >= 0 && cost <= LARGEST) return cost
  throw new InvalidOptionError('cost', cost, 'a number of at least 0')
}
function shareOf({ algorithm, limit, perMs, burst }, share) {
  if (limit === 0) return { algorithm, limit, perMs, burst }
  const part = limit * share
  if (algorithm === 'sliding-window' && part < 1) return { algorithm, limit: 1, perMs: perMs / part, burst: 1 }
  return { algorithm, limit: part, perMs, burst: Math.max(burst * share, Math.min(burst, 1)) }
}
function limitFrom(at, { limit, per, burst, algorithm = 'token-bucket' }) {
  const amount = amountFrom(`${at}limit`, limit)
  const perMs = milliseconds(`${at}per`, per, { min: 1 })
  if (algorithm === 'sliding-window') {
    if (burst !== void 0 && burst !== limit) {
      throw new InvalidOptionError(`${at}burst`, burst, 'no value for a sliding window: its limit is also its burst')
    }
    return { algorithm, limit: amount, perMs, burst: amount }
  }
  if (algorithm !== 'token-bucket') {
    throw new InvalidOptionError(`${at}algorithm`, algorithm, "'token-bucket' or 'sliding-window'")
  }
  if (amount === 0) return { algorithm, limit: 0, perMs, burst: 0 }
  return { algorithm, limit: amount, perMs, burst: burst === void 0 ? Math.max(amount, 1) : sizeFrom(at, burst) }
}
function amountFrom(option, value) {
  if (typeof value === 'number' && value >= 0 && value <= LARGEST) return value
  throw new InvalidOptionError(option, value, 'a number of at least 0')
}
function sizeFrom(at, burst) {
  if (typeof burst === 'number' && burst > 0 && burst <= LARGEST) return burst
  throw new InvalidOptionError(`${at}burst`, burst, 'a number above 0')
}
function refuseUnknown(options, known) {
  for (const option of Object.keys(options)) {
    if (!known.includes(option)) throw new InvalidOptionError(option, option, 'no value here: there is no such option')
  }
}

// src/primitives/limiter-outage.ts
init_errors()

// src/stores/memory/index.ts
init_world()

// src/stores/memory/meters.ts
init_rate()
var SWEEP_EVERY = 1e4
var Meters = class {
  #world
  #accounts = /* @__PURE__ */ new Map()
  #calls = 0
  constructor(world) {
    this.#world = world
  }
  take(requests) {
    const now2 = this.#world.now()
    this.#calls += requests.length
    if (this.#calls >= SWEEP_EVERY) this.#sweep(now2)
    return requests.map(({ key, limits, cost }) => {
      const shape = limits.map((limit) => `${limit.algorithm}/${limit.perMs}`).join()
      let account = this.#accounts.get(key)
      if (account?.shape !== shape) {
        account = { meters: limits.map(emptyMeter), shape, idleAt: 0 }
        this.#accounts.set(key, account)
      }
      const answer = takeFrom(account.meters, limits, cost, now2)
      account.idleAt = idleAt(account.meters, limits)
      return answer
    })
  }
  #sweep(now2) {
    this.#calls = 0
    for (const [key, account] of this.#accounts) if (account.idleAt <= now2) this.#accounts.delete(key)
  }
}

// src/stores/memory/index.ts
function memory(options = {}) {
  return new Memory(options.world ?? realWorld)
}
var MOST_IDLE = 1e3
var RELEASED = { outcome: 'released' }
var GONE = { outcome: 'gone' }
var Memory = class {
  name = 'memory'
  expiry = 'timed'
  features = { line: true, counting: true, atomic: true, values: true }
  timeoutMs = 2e3
  immediate = true
  watchesHeld = true
  #world
  #entries = /* @__PURE__ */ new Map()
  #listeners = /* @__PURE__ */ new Map()
  #meters
  /** The last token of any key: one counter for all, so that nothing has to be kept per name. */
  #lastToken = 0
  /** How often a key fell idle since the last sweep. */
  #idle = 0
  /** Events wait here until the books are in order: a listener may call straight back into the store. */
  #outbox = []
  constructor(world) {
    this.#world = world
    this.#meters = new Meters(world)
  }
  acquire(claims, options) {
    const now2 = this.#world.now()
    if (claims.length === 1) {
      const answer = [this.#ask(claims[0], now2)]
      if (this.#outbox.length > 0) this.#deliver()
      return answer
    }
    if (options?.atomic) return this.#askTogether(claims, now2)
    const answers = claims.map((claim2) => this.#ask(claim2, now2))
    this.#deliver()
    return answers
  }
  renew(renewals) {
    const now2 = this.#world.now()
    const answers = renewals.map(({ key, owner: owner2, ttlMs, value }) => {
      const holder = this.#find(this.#entry(key, now2), owner2)
      if (!holder) return GONE
      holder.expiresAt = Math.max(holder.expiresAt, now2 + ttlMs)
      if (value !== void 0) {
        holder.value = value
        this.#post(key, { type: 'changed' })
      }
      return { outcome: 'ours', ttlMs }
    })
    this.#deliver()
    return answers
  }
  release(leases) {
    const now2 = this.#world.now()
    if (leases.length === 1) {
      const answer = [this.#letGo(leases[0], now2)]
      if (this.#outbox.length > 0) this.#deliver()
      return answer
    }
    const answers = leases.map((lease) => this.#letGo(lease, now2))
    this.#deliver()
    return answers
  }
  watch(key, listener) {
    let listeners = this.#listeners.get(key)
    if (!listeners) this.#listeners.set(key, (listeners = /* @__PURE__ */ new Set()))
    listeners.add(listener)
    const close = () => {
      listeners.delete(listener)
      if (listeners.size === 0 && this.#listeners.get(key) === listeners) this.#listeners.delete(key)
    }
    return { ready: true, live: () => true, close }
  }
  holders(prefix) {
    const now2 = this.#world.now()
    return [...this.#entries.keys()].filter((key) => key.startsWith(prefix)).flatMap((key) => this.#views(key, now2))
  }
  inspect(key) {
    const now2 = this.#world.now()
    const holders = this.#views(key, now2)
    const places = [...(this.#entries.get(key)?.line?.values() ?? [])]
    const waiters = places.map(({ claim: claim2, since }) => ({
      key,
      owner: claim2.owner,
      weight: claim2.weight,
      capacity: claim2.capacity,
      waitedMs: now2 - since,
      value: claim2.value,
    }))
    return { holders, waiters }
  }
  revoke(key) {
    const now2 = this.#world.now()
    const cut = this.#views(key, now2)
    const entry = this.#entries.get(key)
    if (entry) {
      this.#evict(key, entry)
      this.#serve(key, entry, now2)
    }
    this.#deliver()
    return cut
  }
  take(requests) {
    return this.#meters.take(requests)
  }
  now() {
    return this.#world.date()
  }
  async close() {}
  /** All or none: tries, and takes back what it was given if one was refused. Nobody stands in line for it. */
  #askTogether(claims, now2) {
    const had = claims.map(({ key, owner: owner2 }) => this.#find(this.#entry(key, now2), owner2) !== void 0)
    const answers = claims.map((claim2) => this.#ask({ ...claim2, placeMs: void 0 }, now2))
    if (answers.some((answer) => !answer.granted)) {
      for (const [i, { key, owner: owner2 }] of claims.entries()) {
        const entry = this.#entries.get(key)
        const holder = this.#find(entry, owner2)
        if (entry && holder && !had[i]) this.#end(key, entry, holder)
      }
      this.#outbox.length = 0
      return claims.map((claim2) => this.#refusal(this.#entry(claim2.key, now2), claim2))
    }
    this.#deliver()
    return answers
  }
  /** The rule, for one claim. */
  #ask(claim2, now2) {
    let entry = this.#entry(claim2.key, now2)
    const held = this.#find(entry, claim2.owner)
    if (held) {
      held.expiresAt = Math.max(held.expiresAt, now2 + claim2.ttlMs)
      return { granted: true, owner: claim2.owner, token: held.token, ttlMs: claim2.ttlMs, decidedAt: now2 }
    }
    if (claim2.steal && entry) this.#evict(claim2.key, entry)
    if (claim2.steal || this.#admits(entry, claim2)) {
      entry?.line?.delete(claim2.owner)
      if (!entry) this.#entries.set(claim2.key, (entry = { holders: void 0, sole: void 0, line: void 0 }))
      return this.#grant(entry, claim2, now2, claim2.ttlMs)
    }
    if (claim2.placeMs !== void 0) this.#stand(entry, claim2, claim2.placeMs, now2)
    return this.#refusal(entry, claim2)
  }
  /** Whether nobody earlier stands in line and there is room. */
  #admits(entry, claim2) {
    if (!entry) return true
    if (entry.line && entry.line.size > 0 && entry.line.keys().next().value !== claim2.owner) return false
    return this.#fits(entry, claim2)
  }
  #fits(entry, claim2) {
    let free = claim2.capacity - claim2.weight
    if (entry.sole) free -= entry.sole.weight
    if (entry.holders) for (const holder of entry.holders.values()) free -= holder.weight
    return free >= 0
  }
  #grant(entry, claim2, now2, ttlMs) {
    this.#lastToken = Math.max(this.#lastToken + 1, Math.floor(now2 * 1e3))
    const token = BigInt(this.#lastToken)
    const holder = {
      owner: claim2.owner,
      weight: claim2.weight,
      capacity: claim2.capacity,
      expiresAt: now2 + ttlMs,
      token,
      since: now2,
      value: claim2.value,
      announce: claim2.announce === true,
    }
    if (entry.holders) entry.holders.set(claim2.owner, holder)
    else if (entry.sole) {
      entry.holders = /* @__PURE__ */ new Map([
        [entry.sole.owner, entry.sole],
        [claim2.owner, holder],
      ])
      entry.sole = void 0
    } else entry.sole = holder
    if (claim2.announce) this.#post(claim2.key, { type: 'changed' })
    return { granted: true, owner: claim2.owner, token, ttlMs, decidedAt: now2 }
  }
  #stand(entry, claim2, placeMs, now2) {
    entry.line ??= /* @__PURE__ */ new Map()
    const place = entry.line.get(claim2.owner)
    if (place) place.expiresAt = now2 + placeMs
    else entry.line.set(claim2.owner, { claim: claim2, placeMs, expiresAt: now2 + placeMs, since: now2 })
  }
  #refusal(entry, claim2) {
    let ahead2 = 0
    for (const owner3 of entry?.line?.keys() ?? []) {
      if (owner3 === claim2.owner) break
      ahead2++
    }
    const holder = entry?.sole ?? entry?.holders?.values().next().value
    if (!holder) return { granted: false, ahead: ahead2 }
    const { owner: owner2, token, value, expiresAt } = holder
    const blocker = { owner: owner2, token, value, ttlMs: Math.max(expiresAt - this.#world.now(), 0) }
    return { granted: false, ahead: ahead2, blocker }
  }
  #letGo({ key, owner: owner2 }, now2) {
    const entry = this.#entry(key, now2)
    if (!entry) return GONE
    const waited = entry.line !== void 0 && entry.line.delete(owner2)
    const holder = this.#find(entry, owner2)
    if (holder) this.#end(key, entry, holder)
    else if (!waited) return GONE
    if (entry.line && entry.line.size > 0) this.#serve(key, entry, now2)
    if (!entry.sole && !entry.holders) this.#sweepIfMany()
    return RELEASED
  }
  /** Drops what expired, and forgets a key that nobody needs. The head of the line comes by itself when a lease runs out. */
  #entry(key, now2) {
    const entry = this.#entries.get(key)
    if (!entry) return void 0
    if (entry.sole && entry.sole.expiresAt <= now2) this.#end(key, entry, entry.sole)
    if (entry.holders) {
      for (const holder of entry.holders.values()) if (holder.expiresAt <= now2) this.#end(key, entry, holder)
    }
    if (entry.line) {
      for (const [owner2, place] of entry.line) if (place.expiresAt <= now2) entry.line.delete(owner2)
    }
    return entry
  }
  /** Hands the lease to the head of the line while there is room: no second question, no race with newcomers. */
  #serve(key, entry, now2) {
    for (const [owner2, place] of entry.line ?? []) {
      if (!this.#fits(entry, place.claim)) break
      entry.line?.delete(owner2)
      const ttlMs = Math.min(place.placeMs, place.claim.ttlMs)
      const { token } = this.#grant(entry, place.claim, now2, ttlMs)
      this.#post(key, { type: 'granted', owner: owner2, token, ttlMs })
    }
  }
  #evict(key, entry) {
    for (const holder of this.#all(entry)) {
      this.#post(key, { type: 'revoked', owner: holder.owner })
      if (holder.announce) this.#post(key, { type: 'changed' })
    }
    entry.sole = void 0
    entry.holders = void 0
  }
  #end(key, entry, holder) {
    if (entry.sole === holder) entry.sole = void 0
    else if (entry.holders?.delete(holder.owner) && entry.holders.size === 0) entry.holders = void 0
    if (holder.announce) this.#post(key, { type: 'changed' })
  }
  #sweepIfMany() {
    if (++this.#idle <= MOST_IDLE) return
    this.#idle = 0
    for (const [key, { sole, holders, line }] of this.#entries) {
      if (!sole && !holders && !line?.size) this.#entries.delete(key)
    }
  }
  #find(entry, owner2) {
    if (!entry) return void 0
    if (entry.sole) return entry.sole.owner === owner2 ? entry.sole : void 0
    return entry.holders?.get(owner2)
  }
  #all(entry) {
    return entry.sole ? [entry.sole] : [...(entry.holders?.values() ?? [])]
  }
  #views(key, now2) {
    const entry = this.#entry(key, now2)
    if (!entry) return []
    return this.#all(entry).map(({ owner: owner2, weight, capacity, token, value, expiresAt, since }) => ({
      key,
      owner: owner2,
      weight,
      capacity,
      token,
      value,
      ttlMs: expiresAt - now2,
      heldMs: now2 - since,
      waiting: entry.line?.size ?? 0,
    }))
  }
  #post(key, event) {
    if (this.#listeners.has(key)) this.#outbox.push({ key, event })
  }
  #deliver() {
    while (this.#outbox.length > 0) {
      const mail = this.#outbox
      this.#outbox = []
      for (const { key, event } of mail) for (const listener of [...(this.#listeners.get(key) ?? [])]) listener(event)
    }
  }
}

// src/primitives/limiter-outage.ts
var PROBE_EVERY_MS = 1e3
var Outage = class {
  #engine
  #limits
  #policy
  #error
  #probeAt = 0
  #local
  constructor(engine, limits, policy) {
    this.#engine = engine
    this.#limits = limits
    this.#policy = policy
  }
  /** The store failed a moment ago, and somebody else is asking already: decide without it. */
  get pending() {
    if (this.#error === void 0 || this.#policy === 'throw') return void 0
    const now2 = this.#engine.world.now()
    if (now2 < this.#probeAt) return this.#error
    this.#probeAt = now2 + PROBE_EVERY_MS
    return void 0
  }
  over() {
    this.#error = void 0
  }
  /** Bad input is thrown whatever the policy: only an outage is for it to decide. */
  began(error) {
    if (!(error instanceof StoreUnavailableError)) throw error
    this.#error = error
    this.#probeAt = this.#engine.world.now() + PROBE_EVERY_MS
  }
  decide(key, cost, error) {
    const policy = this.#policy
    if (policy === 'throw') throw error
    if (policy === 'allow') return { allowed: true, remaining: 0, retryAfterMs: 0, resetMs: 0, storeError: error }
    if (policy === 'deny') {
      const again = Math.max(this.#probeAt - this.#engine.world.now(), 1)
      return { allowed: false, remaining: 0, retryAfterMs: again, resetMs: again, storeError: error }
    }
    this.#local ??= memory({ world: this.#engine.world })
    const limits = this.#limits.map((limit) => shareOf(limit, policy.local))
    const [answer] = this.#local.take([{ key, cost, limits }])
    return { ...answer, storeError: error }
  }
}

// src/primitives/limiter-turn.ts
var Turn = class {
  #ask
  /** More than this can never be taken at once. */
  #most
  /** Of every key that is asked about, or will be in this turn. */
  #lanes = /* @__PURE__ */ new Map()
  #due = []
  constructor(ask, most) {
    this.#ask = ask
    this.#most = most
  }
  take(key, cost) {
    return new Promise((resolve) => {
      const lane = this.#lanes.get(key)
      if (lane) lane.takes.push({ cost, resolve })
      else {
        const opened = { key, takes: [{ cost, resolve }] }
        this.#lanes.set(key, opened)
        this.#schedule(opened)
      }
    })
  }
  /** After what this turn still has to do: whoever else was just answered gets aboard. */
  #schedule(lane) {
    if (this.#due.push(lane) === 1) process.nextTick(this.#flush)
  }
  #flush = () => {
    const due = this.#due
    this.#due = []
    for (const lane of due) void this.#drive(lane)
  }
  async #drive(lane) {
    const { key, takes } = lane
    lane.takes = []
    const only = takes.length === 1 ? takes[0] : void 0
    const failure = await (only ? this.#alone(key, only) : this.#together(key, takes, this.#most))
    if (failure && 'granted' in failure) {
      for (const { resolve } of lane.takes) resolve(failure)
      lane.takes = []
    }
    if (lane.takes.length > 0) this.#schedule(lane)
    else this.#lanes.delete(key)
  }
  async #alone(key, take2) {
    const outcome = await this.#ask(key, take2.cost)
    take2.resolve(outcome)
    return outcome
  }
  /** `room`: how much of it is likely to fit. Each round settles at least one of them. Returns what failed. */
  async #together(key, takes, room) {
    let sum = 0
    let fit = 0
    for (const { cost } of takes) {
      if (sum + cost > room) break
      sum += cost
      fit++
    }
    const [next, ...rest] = takes.slice(fit)
    const failures = await Promise.all([
      fit > 0 ? this.#front(key, takes.slice(0, fit), sum) : void 0,
      next ? this.#behind(key, next, rest) : void 0,
    ])
    return failures[0] ?? failures[1]
  }
  async #front(key, takes, sum) {
    const outcome = await this.#ask(key, sum)
    if ('granted' in outcome) {
      for (const { resolve } of takes) resolve(outcome)
      return outcome
    }
    if (!outcome.allowed && takes.length > 1) {
      return this.#together(key, takes, outcome.remaining < sum ? outcome.remaining : 0)
    }
    let later = outcome.allowed ? sum : 0
    for (const { cost, resolve } of takes) {
      if (outcome.allowed) later -= cost
      resolve({ ...outcome, remaining: outcome.remaining + later })
    }
    return void 0
  }
  /** The first that probably does not fit, and those after it: they need not all ask to be told the same. */
  async #behind(key, next, rest) {
    const outcome = await this.#alone(key, next)
    const failed = 'granted' in outcome
    const same = (take2) => failed || (!outcome.allowed && take2.cost >= next.cost)
    for (const take2 of rest) if (same(take2)) take2.resolve(outcome)
    if (failed) return outcome
    const others = rest.filter((take2) => !same(take2))
    return others.length > 0 ? this.#together(key, others, outcome.remaining) : void 0
  }
}

// src/primitives/limiter.ts
var Limiter = class {
  name
  /** What is enforced, with defaults filled in. */
  limits
  #engine
  #prefix
  /** The largest cost that can ever pass. */
  #most
  #turn
  #blocks = new Blocks()
  #outage
  #lines = /* @__PURE__ */ new Map()
  #closing
  /** @internal */
  constructor(engine, defaults, name, options, closing) {
    if (!engine.store.take) {
      throw new UnsupportedError(
        `the ${engine.store.name} store cannot limit rates: use memory, sqlite, redis or postgres`,
      )
    }
    this.limits = limitsFrom(options)
    const policy = policyFrom(options.onStoreError)
    this.#prefix = `${defaults.key('limiter', nameFrom('name', name).replace(/[%:]/g, encodeURIComponent))}:`
    this.name = name
    this.#engine = engine
    this.#closing = closing
    this.#most = Math.min(...this.limits.map((limit) => limit.burst))
    this.#outage = new Outage(engine, this.limits, policy)
    const { limits } = this
    this.#turn = new Turn((key, cost) => engine.courier.take({ key, cost, limits }), this.#most)
  }
  /**
   * Takes `cost` from what `key` has left, at once or not at all; a cost of 0 only looks. Being refused is a value;
   * rejects only when the store fails (and `onStoreError` says so).
   */
  take(key, cost = 1) {
    if (typeof cost === 'number' && cost <= this.#most) {
      const now2 = this.#engine.world.now()
      const block = this.#blocks.find(key, cost, now2)
      if (block) {
        const { remaining: remaining2, until, whole } = block
        return Promise.resolve({
          allowed: false,
          remaining: remaining2,
          retryAfterMs: until - now2,
          resetMs: whole - now2,
        })
      }
    }
    return this.#take(key, cost)
  }
  /**
   * Resolves when it could take `cost`. First come, first served within this process; `signal` cancels. Rejects with
   * `InvalidOptionError` if the cost could never pass.
   */
  async wait(key, options = {}) {
    const cost = options.cost === void 0 ? 1 : costFrom(options.cost)
    const signals = options.signal === void 0 ? [this.#closing] : [signalFrom(options.signal), this.#closing]
    if (cost > this.#most || this.#most === 0) {
      throw new InvalidOptionError('cost', cost, `at most ${this.#most} here, or it would wait for ever`)
    }
    this.#check(key)
    for (const signal of signals) signal.throwIfAborted()
    let line = this.#lines.get(key)
    if (!line) {
      const take2 = (sum) => this.take(key, sum)
      line = new WaitingLine(this.#engine.world, take2, () => this.#lines.delete(key))
      this.#lines.set(key, line)
    }
    return line.wait(cost, signals)
  }
  async #take(key, asked) {
    const cost = costFrom(asked)
    const full = this.#check(key)
    if (this.#engine.closingReason) throw new ClosedError(`"${this.name}" takes nothing: locks.close() was called`)
    if (this.#most === 0) return { allowed: false, remaining: 0, retryAfterMs: Number.POSITIVE_INFINITY, resetMs: 0 }
    const out = this.#outage.pending
    if (out) return this.#outage.decide(full, cost, out)
    const sentAt = this.#engine.world.now()
    const answer = await this.#turn.take(full, cost)
    if ('granted' in answer) return this.#failed(full, cost, answer)
    this.#outage.over()
    if (!answer.allowed && answer.retryAfterMs < Number.POSITIVE_INFINITY) this.#block(key, cost, answer, sentAt)
    return answer
  }
  #block(key, cost, { remaining: remaining2, retryAfterMs, resetMs }, sentAt) {
    const block = { cost, remaining: remaining2, until: sentAt + retryAfterMs, whole: sentAt + resetMs }
    this.#blocks.add(key, block, this.#engine.world.now())
  }
  #failed(key, cost, { error }) {
    this.#outage.began(error)
    this.#engine.events.emit('error', () => ({ name: this.name, kind: 'limiter', doing: 'acquire', error }))
    return this.#outage.decide(key, cost, error)
  }
  #check(key) {
    const full = this.#prefix + nameFrom('key', key)
    this.#engine.store.partition?.(full)
    return full
  }
}

// src/primitives/lock.ts
init_errors()
async function withLock(engine, ask, fn, nested) {
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the lock')
  if (nested === void 0) refuseSelfDeadlock(engine.store, [ask.key], () => ask.name)
  else if (nested !== 'wait') throw new InvalidOptionError('nested', nested, "'wait'")
  const lock = await engine.acquire(ask)
  return runUnder(lock, () => holding(engine.store, [ask.key], () => fn(lock)))
}
async function runUnder(lock, fn) {
  const lease = leaseOf(lock)
  let result
  try {
    result = await fn()
  } catch (error) {
    await lock.release()
    throw error
  }
  lease.settle()
  await lock.release()
  if (lease.loss) throw lease.loss
  return result
}

// src/primitives/wrap.ts
init_errors()
function wrap(under, name, fn) {
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run under the lock')
  if (typeof name !== 'string' && typeof name !== 'function') {
    throw new InvalidOptionError('name', name, 'a name, or a function of the arguments that returns one')
  }
  const wrapped = async function (...args) {
    return under(typeof name === 'function' ? name.apply(this, args) : name, () => fn.apply(this, args))
  }
  return Object.defineProperty(wrapped, 'name', { value: fn.name, configurable: true })
}

// src/primitives/lookout.ts
init_errors()
init_store()
var Lookout = class {
  #engine
  #defaults
  constructor(engine, defaults) {
    this.#engine = engine
    this.#defaults = defaults
  }
  async holders(prefix, options = {}) {
    const { kind = 'lock' } = options
    if (typeof prefix !== 'string') throw new InvalidOptionError('prefix', prefix, 'a string')
    const views = await this.#engine.look('holders', (store2) =>
      store2.holders?.(`${kindFrom(kind)}:${this.#defaults.prefix}${prefix}`),
    )
    return views.map((view) => this.#holder(view))
  }
  async waiters(name, options) {
    return (await this.inspect(name, options)).waiters
  }
  async inspect(name, { kind = 'lock' } = {}) {
    const key = this.#defaults.key(kindFrom(kind), name)
    const { holders, waiters } = await this.#engine.look('inspect', (store2) => store2.inspect?.(key))
    return {
      name,
      kind,
      holders: holders.map((view) => this.#holder(view)),
      waiters: waiters.map((view) => this.#waiter(view)),
    }
  }
  async forceRelease(name, { kind = 'lock' } = {}) {
    const key = this.#defaults.key(kindFrom(kind), name)
    const cut = await this.#engine.look('forceRelease', (store2) => store2.revoke?.(key))
    return cut.map((view) => this.#holder(view))
  }
  #holder(view) {
    const now2 = this.#engine.world.date()
    return {
      ...this.#common(view),
      fencingToken: view.token,
      acquiredAt: view.heldMs === void 0 ? void 0 : new Date(now2 - view.heldMs),
      expiresAt: view.ttlMs === void 0 ? void 0 : new Date(now2 + view.ttlMs),
      foreign: view.foreign === true,
      waiting: view.waiting ?? 0,
    }
  }
  #waiter(view) {
    return { ...this.#common(view), waitedMs: view.waitedMs }
  }
  #common({ key, owner: owner2, weight, capacity, value, detail }) {
    const colon = key.indexOf(':')
    const kind = key.slice(0, colon)
    const full = key.slice(colon + 1)
    const { prefix } = this.#defaults
    const name = full.startsWith(prefix) ? full.slice(prefix.length) : full
    const mode = weight === 1 && capacity === ALL ? 'shared' : 'exclusive'
    return { name, kind, holder: owner2, mode, weight, metadata: parsed2(value), detail }
  }
}
function parsed2(value) {
  if (value === void 0) return void 0
  try {
    return JSON.parse(value)
  } catch {
    return value
  }
}
function kindFrom(kind) {
  if (typeof kind === 'string' && /^[a-z]+$/.test(kind)) return kind
  throw new InvalidOptionError('kind', kind, "a word such as 'lock', 'semaphore' or 'election'")
}

// src/primitives/once.ts
init_errors()
init_duration()
var LARGEST_RESULT = 1048576
var RETRY_EVERY_MS = 100
var RUNNING = '{"done":false}'
async function once(engine, defaults, key, fn, { retain = '1d', ...options } = {}) {
  if (!engine.store.features.values) {
    throw new UnsupportedError(
      `once needs a store that remembers results, and the ${engine.store.name} store cannot: use memory, sqlite, redis, postgres or etcd`,
    )
  }
  if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run once')
  const max = engine.store.maxTtlMs
  const retainMs = Math.ceil(milliseconds('retain', retain, max === void 0 ? { min: 10 } : { min: 10, max }))
  const plain2 = defaults.ask('once', key, options)
  refuseSelfDeadlock(engine.store, [plain2.key], () => key)
  const outcome = await lockOrRecord(engine, { ...plain2, ttlMs: Math.min(plain2.ttlMs, retainMs), value: RUNNING })
  if ('done' in outcome) return outcome.result
  return run(outcome, fn, retainMs)
}
async function lockOrRecord(engine, plain2, whileRunning) {
  let record
  let heldBy
  const onRefusal = ({ blocker }) => {
    heldBy = blocker?.owner
    record = recordIn(blocker?.value)
    if (!record) whileRunning?.()
    return record !== void 0
  }
  const ask = { ...plain2, onRefusal }
  const lock = await engine.tryAcquire(ask)
  if (lock) return lock
  if (record) return record
  if (ask.waitMs === 0) {
    const { name, kind } = ask
    engine.events.emit('timeout', () => ({ name, kind, waitedMs: 0, heldBy }))
    throw new LockTimeoutError(name, { waitedMs: 0, heldBy })
  }
  try {
    return await engine.acquire(ask)
  } catch (error) {
    if (error instanceof WaitEnded && record) return record
    throw error
  }
}
async function run(lock, fn, retainMs) {
  const { engine, ask } = leaseOf(lock)
  let value
  try {
    const result = await holding(engine.store, [ask.key], () => fn(lock))
    value = recordOf(result)
  } catch (error) {
    await lock.release()
    throw error
  }
  await keepRecord(lock, value, retainMs)
  return recordIn(value)?.result
}
async function keepRecord(lock, value, retainMs) {
  const lease = leaseOf(lock)
  const { world } = lease.engine
  for (;;) {
    const { outcome, ...rest } = await lease.keep(value, retainMs)
    if (outcome === 'ours') return
    if (outcome === 'gone') throw lease.loss ?? new LockLostError(lock.name, 'gone')
    const { error } = rest
    if (!lease.held) {
      throw new StoreUnavailableError(`"${lock.name}" ran, and may or may not have been recorded`, { cause: error })
    }
    await new Promise((resolve) => world.after(RETRY_EVERY_MS, resolve, true))
  }
}
function recordOf(result) {
  if (result !== void 0) jsonFrom('result', result, LARGEST_RESULT)
  return JSON.stringify({ done: true, result })
}
function recordIn(value) {
  if (value === void 0) return void 0
  try {
    const content = JSON.parse(value)
    return content?.done === true ? content : void 0
  } catch {
    return void 0
  }
}

// src/primitives/read-write.ts
init_errors()
var ReadWriteLock = class {
  #engine
  #defaults
  #name
  /** @internal */
  constructor(engine, defaults, name, { starvation }) {
    if (starvation !== void 0 && starvation !== 'accepted') {
      throw new InvalidOptionError('starvation', starvation, "'accepted'")
    }
    if (!engine.store.features.line && !starvation) {
      throw new UnsupportedError(
        `readWrite needs a line so that writers do not starve, and the ${engine.store.name} store keeps none: pass { starvation: 'accepted' } if a steady stream of readers may keep a writer out, or use the memory, SQLite, Redis or PostgreSQL lease-table store`,
      )
    }
    defaults.key('lock', name)
    this.#engine = engine
    this.#defaults = defaults
    this.#name = name
  }
  /** Runs `fn` beside other readers, never beside a writer. */
  async read(fn, options) {
    return withLock(this.#engine, this.#ask('shared', options), fn, options?.nested)
  }
  /** Runs `fn` alone. */
  async write(fn, options) {
    return withLock(this.#engine, this.#ask('exclusive', options), fn, options?.nested)
  }
  /** Holds it beside other readers until `release()`. */
  async acquireRead(options) {
    return this.#engine.acquire(this.#ask('shared', options))
  }
  /** Holds it alone until `release()`. */
  async acquireWrite(options) {
    return this.#engine.acquire(this.#ask('exclusive', options))
  }
  #ask(mode, options) {
    const given = options?.mode
    if (given !== void 0) throw new InvalidOptionError('mode', given, 'no value here: the method says it')
    return this.#defaults.ask('lock', this.#name, { ...options, mode })
  }
}

// src/primitives/schedule.ts
init_errors()

// src/primitives/schedule-clock.ts
var DRIFT = 5e-4
var StoreClock = class {
  #engine
  #stored = 0
  #askedAt = Number.NEGATIVE_INFINITY
  constructor(engine) {
    this.#engine = engine
  }
  /** Asks if the last answer is older than this. Rejects when the store does not answer. */
  async now(oldest) {
    const { world } = this.#engine
    if (world.now(true) - this.#askedAt > oldest) {
      const stored = await this.#engine.look('the time of the store', (store2) => store2.now?.())
      this.#stored = stored
      this.#askedAt = world.now(true)
    }
    return this.last
  }
  /** By the last answer, however old. By the local clock if there was none. */
  get last() {
    const { world } = this.#engine
    if (this.#askedAt === Number.NEGATIVE_INFINITY) return world.date()
    return this.#stored + (world.now(true) - this.#askedAt) * (1 - DRIFT)
  }
}

// src/primitives/schedule-cron.ts
init_errors()
import { Cron } from 'croner'
var SECOND = 1e3
var Ticks = class {
  #cron
  constructor(expression, timezone) {
    this.#cron = parse2(expression, timezone)
    if (this.#cron.getOnce() !== null) {
      throw new InvalidOptionError('cron', expression, 'a cron expression, not a date')
    }
    if (this.#cron.nextRun() === null) {
      throw new InvalidOptionError('cron', expression, 'a cron expression that is due at some time')
    }
  }
  /** The first after this time. Undefined: there will be none. */
  after(time) {
    return this.#cron.nextRun(new Date(time))?.getTime()
  }
  /** The last up to this time. */
  upTo(time) {
    const beforeNextSecond = new Date((Math.floor(time / SECOND) + 1) * SECOND)
    return this.#cron.previousRuns(1, beforeNextSecond)[0]?.getTime()
  }
}
function parse2(expression, timezone) {
  const takes = 'a cron expression of 5 fields, or of 6 with seconds first'
  if (typeof expression !== 'string') throw new InvalidOptionError('cron', expression, takes)
  try {
    new Intl.DateTimeFormat('en', { timeZone: timezone })
  } catch {
    throw new InvalidOptionError('timezone', timezone, 'the name of a time zone, such as "Europe/Berlin"')
  }
  try {
    return new Cron(expression, { timezone })
  } catch (error) {
    throw new InvalidOptionError('cron', expression, `${takes} (${error instanceof Error ? error.message : error})`)
  }
}

// src/primitives/schedule-events.ts
var ScheduleBell = class {
  #listeners = /* @__PURE__ */ new Map()
  on(event, listener) {
    const listeners = this.#listeners.get(event) ?? /* @__PURE__ */ new Set()
    this.#listeners.set(event, listeners.add(listener))
  }
  off(event, listener) {
    this.#listeners.get(event)?.delete(listener)
  }
  ring(event, facts2) {
    const listeners = [...(this.#listeners.get(event) ?? [])]
    if (event === 'failed' && listeners.length === 0) warn(facts2.error)
    for (const listener of listeners) {
      try {
        listener(facts2)
      } catch (error) {
        warn(error)
      }
    }
  }
}
function warn(error) {
  process.emitWarning(error instanceof Error ? error : String(error), 'LeaseholdScheduleWarning')
}

// src/primitives/schedule-options.ts
init_errors()
init_duration()
var KNOWN2 = /* @__PURE__ */ new Set(['timezone', 'ttl', 'holdAtLeast', 'maxHold', 'onCrash', 'missed', 'overlap'])
function termsFrom(options) {
  if (typeof options !== 'object' || options === null) throw new InvalidOptionError('options', options, 'an object')
  for (const option of Object.keys(options)) {
    if (!KNOWN2.has(option)) throw new InvalidOptionError(option, option, 'no value here: there is no such option')
  }
  const { timezone = 'UTC', holdAtLeast = 0, maxHold, onCrash, missed, overlap } = options
  if (typeof timezone !== 'string') throw new InvalidOptionError('timezone', timezone, 'a name such as "Europe/Berlin"')
  const holdAtLeastMs = milliseconds('holdAtLeast', holdAtLeast)
  if (maxHold !== void 0 && holdAtLeastMs > milliseconds('maxHold', maxHold)) {
    throw new InvalidOptionError('holdAtLeast', holdAtLeast, 'no more than maxHold')
  }
  return {
    timezone,
    holdAtLeastMs,
    retries: oneOf('onCrash', onCrash, 'skip', 'retry'),
    catchesUp: oneOf('missed', missed, 'skip', 'once'),
    waits: oneOf('overlap', overlap, 'skip', 'wait'),
  }
}
function oneOf(option, value, usual, other) {
  if (value === other) return true
  if (value === void 0 || value === usual) return false
  throw new InvalidOptionError(option, value, `'${usual}' or '${other}'`)
}

// src/primitives/schedule-run.ts
init_errors()
var OVERLAP_GRACE = 0.1
var LONGEST_GRACE_MS = 1e3
var RETRY_EVERY_MS2 = 250
var Runs = class {
  #engine
  #ask
  #job
  #terms
  #clock
  #bell
  #stopping
  #waiting = false
  constructor(tools) {
    this.#engine = tools.engine
    this.#ask = tools.ask
    this.#job = tools.job
    this.#terms = tools.terms
    this.#clock = tools.clock
    this.#bell = tools.bell
    this.#stopping = tools.stopping
  }
  async run(times, claim2) {
    const facts2 = { name: this.#ask.name, tick: new Date(times.at) }
    let lock
    try {
      lock = await this.#turn(times, claim2.retried)
    } catch (error) {
      if (this.#stopping.aborted) this.#bell.ring('skipped', { ...facts2, reason: 'stopped' })
      else this.#bell.ring('error', { ...facts2, error })
      await claim2.giveUp()
      return
    }
    if (!lock) {
      this.#bell.ring('skipped', { ...facts2, reason: 'overlap' })
      await claim2.done()
      return
    }
    await this.#work(times, claim2, lock)
  }
  /** Waits until no other run goes on, for as long as that is allowed. Undefined: it went on. */
  async #turn(times, retried) {
    if (this.#terms.waits) {
      if (this.#waiting) return void 0
      this.#waiting = true
    }
    const grace = Math.min((times.next - times.at) * OVERLAP_GRACE, LONGEST_GRACE_MS)
    const patience = retried ? this.#ask.ttlMs * 2 : grace
    const value = JSON.stringify({ tick: new Date(times.at).toISOString() })
    const waitMs = this.#terms.waits ? Number.POSITIVE_INFINITY : patience
    try {
      for (;;) {
        try {
          const ask = { ...this.#ask, value, waitMs }
          const lock = await this.#engine.tryAcquire(ask)
          return lock ?? (await this.#engine.acquire({ ...ask, signal: this.#stopping }))
        } catch (error) {
          if (error instanceof LockTimeoutError) return void 0
          if (!(error instanceof StoreUnavailableError) || this.#clock.last > times.startBy) throw error
        }
        await new Promise((resolve) => this.#engine.world.after(RETRY_EVERY_MS2, resolve))
      }
    } finally {
      this.#waiting = false
    }
  }
  async #work(times, claim2, lock) {
    const { world } = this.#engine
    const began = world.now()
    const lateMs = Math.max(this.#clock.last - times.at, 0)
    const { holder, fencingToken, signal } = lock
    const run2 = { name: this.#ask.name, tick: new Date(times.at), lateMs, retried: claim2.retried, fencingToken }
    const facts2 = { ...run2, holder }
    signal.addEventListener('abort', () => this.#lost(facts2, claim2, signal.reason), { once: true })
    this.#bell.ring('started', facts2)
    try {
      await this.#job({ ...run2, signal })
      this.#bell.ring('finished', { ...facts2, tookMs: world.now() - began })
    } catch (error) {
      this.#bell.ring('failed', { ...facts2, tookMs: world.now() - began, error })
    }
    await this.#done(facts2, claim2)
    await this.#letGo(lock, began)
  }
  async #done(facts2, claim2) {
    try {
      await claim2.done()
    } catch (error) {
      this.#bell.ring('error', { name: facts2.name, tick: facts2.tick, error })
    }
  }
  #lost(facts2, claim2, reason) {
    if (!(reason instanceof LockLostError) || reason.why === 'released') return
    this.#bell.ring('lost', { ...facts2, error: reason })
    if (reason.why === 'max-hold') void this.#done(facts2, claim2)
  }
  /** Not before `holdAtLeast` has passed. Nobody waits for that: if we stop meanwhile, it runs out by itself. */
  async #letGo(lock, began) {
    const { world } = this.#engine
    const left = began + this.#terms.holdAtLeastMs - world.now()
    if (left <= 0) {
      await lock.release()
      return
    }
    const leave2 = () => {
      cancel()
      leaseOf(lock).end()
    }
    const cancel = world.after(left, () => {
      this.#stopping.removeEventListener('abort', leave2)
      void lock.release()
    })
    if (this.#stopping.aborted) leave2()
    else this.#stopping.addEventListener('abort', leave2, { once: true })
  }
}

// src/primitives/schedule-tick.ts
init_errors()
var MARGIN_MS = 3e5
var RETRY_EVERY_MS3 = 250
function keepMarkMs({ at, next, startBy }) {
  return Math.ceil(Math.max(next, startBy) - at + MARGIN_MS)
}
var TickClaims = class {
  #engine
  #ask
  #clock
  #bell
  #retries
  #stopping
  constructor(tools) {
    this.#engine = tools.engine
    this.#ask = tools.ask
    this.#clock = tools.clock
    this.#bell = tools.bell
    this.#retries = tools.retries
    this.#stopping = tools.stopping
  }
  /** Ours to start, or undefined: somebody else's, too late, or the schedule stops. */
  async claim(times) {
    const facts2 = { name: this.#ask.name, tick: new Date(times.at) }
    const claim2 = await this.#persist(times, () => (this.#retries ? this.#untilDone(times) : this.#forGood(times)))
    if (claim2 === 'elsewhere') this.#bell.ring('elsewhere', facts2)
    else if (claim2 === 'late') this.#bell.ring('missed', { ...facts2, first: facts2.tick })
    else return claim2
    return void 0
  }
  /** An outage is no reason to give up a tick before its time. */
  async #persist({ at, startBy }, attempt) {
    for (;;) {
      try {
        return await attempt()
      } catch (error) {
        if (this.#stopping.aborted || error instanceof ClosedError) return void 0
        if (!(error instanceof Error)) throw error
        this.#bell.ring('error', { name: this.#ask.name, tick: new Date(at), error })
        if (!(error instanceof StoreUnavailableError)) return void 0
        if (this.#clock.last > startBy) return 'late'
      }
      await new Promise((resolve) => this.#engine.world.after(RETRY_EVERY_MS3, resolve))
    }
  }
  /** Whoever gets it has started it, whatever becomes of him. */
  async #forGood(times) {
    const ttlMs = keepMarkMs(times)
    const mark = await this.#engine.tryAcquire({ ...this.#askFor(times.at), ttlMs, autoRenew: false })
    if (!mark) return 'elsewhere'
    leaseOf(mark).end()
    if (this.#clock.last > times.at + ttlMs - MARGIN_MS / 2) return 'late'
    return new TickClaim(void 0, ttlMs, false)
  }
  /** Held while it runs: if he who has it dies, the next one gets it, until somebody records that it is done. */
  async #untilDone(times) {
    const { world } = this.#engine
    const keepMs = keepMarkMs(times)
    let seenAt = world.now(true)
    let running = false
    const ask = { ...this.#askFor(times.at), waitMs: Number.POSITIVE_INFINITY, signal: this.#stopping }
    const outcome = await lockOrRecord(this.#engine, ask, () => {
      seenAt = world.now(true)
      running = true
    })
    if ('done' in outcome) return 'elsewhere'
    const claim2 = new TickClaim(outcome, keepMs, running)
    const slept = world.now(true) - seenAt > keepMs - MARGIN_MS / 2
    if (!slept && (running || this.#clock.last <= times.at + keepMs - MARGIN_MS / 2)) return claim2
    await claim2.done()
    return 'late'
  }
  #askFor(at) {
    const tick = new Date(at).toISOString()
    return { ...this.#ask, key: `${this.#ask.key}@${tick}`, value: RUNNING, maxHoldMs: void 0 }
  }
}
var TickClaim = class {
  #mark
  #keepMs
  /** Somebody else had begun it. */
  retried
  constructor(mark, keepMs, retried) {
    this.#mark = mark
    this.#keepMs = keepMs
    this.retried = retried
  }
  /** It need not be run again. */
  async done() {
    if (this.#mark) await keepRecord(this.#mark, recordOf(void 0), this.#keepMs)
  }
  /** It was not run: whoever waits for it may. */
  async giveUp() {
    await this.#mark?.release()
  }
}

// src/primitives/schedule.ts
var CLOCK_AGE_MS = 1e4
var LONG_SLEEP_MS = 2e4
var LEAST_LATE_MS = 5e3
var MOST_LATE_MS = 3e5
var RETRY_EVERY_MS4 = 1e3
var REMEMBER_MS = 400 * 864e5
var Schedule = class {
  name
  #engine
  #ask
  #terms
  #ticks
  #clock
  #bell = new ScheduleBell()
  #claims
  #runs
  #stopping = new AbortController()
  /** Ticks that are being claimed, or run. */
  #active = /* @__PURE__ */ new Set()
  /** @internal */
  constructor(engine, defaults, plan, closing) {
    const { name, cron, job, options } = plan
    if (!engine.store.features.values || !engine.store.now) {
      throw new UnsupportedError(
        `a schedule needs a store that has a clock and remembers ticks, and the ${engine.store.name} store has not: use memory, sqlite, redis or postgres`,
      )
    }
    if (closing.aborted) throw new ClosedError(`"${name}" cannot be scheduled: locks.close() was called`)
    if (typeof job !== 'function') throw new InvalidOptionError('fn', job, 'a function to run at each tick')
    this.#terms = termsFrom(options)
    this.#ticks = new Ticks(cron, this.#terms.timezone)
    this.name = name
    this.#engine = engine
    this.#clock = new StoreClock(engine)
    this.#ask = askFrom(defaults, name, options, this.#terms)
    const stopping = this.#stopping.signal
    const tools = { engine, ask: this.#ask, clock: this.#clock, bell: this.#bell, stopping }
    this.#claims = new TickClaims({ ...tools, retries: this.#terms.retries })
    this.#runs = new Runs({ ...tools, job, terms: this.#terms })
    const close = () => this.#stopping.abort(closing.reason)
    closing.addEventListener('abort', close, { once: true, signal: stopping })
    void this.#follow()
  }
  /** The next times it is due. */
  next(count = 1) {
    if (!Number.isInteger(count) || count < 1 || count > 1e4) {
      throw new InvalidOptionError('count', count, 'a whole number from 1 to 10000')
    }
    const dates = []
    let at = this.#clock.last
    while (dates.length < count) {
      at = this.#ticks.after(at)
      if (at === void 0) break
      dates.push(new Date(at))
    }
    return dates
  }
  on(event, listener) {
    this.#bell.on(event, listener)
    return this
  }
  off(event, listener) {
    this.#bell.off(event, listener)
    return this
  }
  /** Starts nothing more, and resolves when the job that runs has ended. The other instances go on. */
  async stop() {
    this.#stopping.abort(new ClosedError(`"${this.name}" stops`))
    while (this.#active.size > 0) await Promise.all(this.#active)
  }
  async [Symbol.asyncDispose]() {
    await this.stop()
  }
  /** From tick to tick, until stopped. */
  async #follow() {
    let seen = await this.#begin()
    while (seen !== void 0) {
      const next = this.#ticks.after(seen)
      seen = next === void 0 ? void 0 : await this.#untilDue(next)
      if (next !== void 0 && seen !== void 0) this.#handle(next, seen)
    }
  }
  /** The store's time now. Undefined: stopped before it could be had. */
  async #begin() {
    while (!this.#stopping.signal.aborted) {
      const now2 = await this.#storeTime()
      if (now2 !== void 0 && (!this.#terms.catchesUp || (await this.#catchUp(now2)))) return now2
      await this.#sleep(RETRY_EVERY_MS4)
    }
    return void 0
  }
  /** Sleeps until the store's clock has reached this tick, and says what it shows then. */
  async #untilDue(tick) {
    while (!this.#stopping.signal.aborted) {
      const now2 = await this.#storeTime()
      if (this.#stopping.signal.aborted) break
      if (now2 === void 0) await this.#sleep(RETRY_EVERY_MS4)
      else if (now2 >= tick) return now2
      else await this.#sleep(tick - now2 > LONG_SLEEP_MS ? (tick - now2) * 0.9 : tick - now2)
    }
    return void 0
  }
  /** Everything due from `first` until now: usually that one. More if this process, or the store, was away for a while. */
  #handle(first, now2) {
    const latest = this.#ticks.upTo(now2) ?? first
    const lateBy = this.#lateBy(latest)
    const due = []
    let tick = this.#ticks.after(Math.max(first, now2 - lateBy) - 1)
    for (; tick !== void 0 && tick <= now2; tick = this.#ticks.after(tick)) due.push(tick)
    if (due[0] !== first) {
      const last = due[0] === void 0 ? latest : (this.#ticks.upTo(due[0] - 1) ?? first)
      this.#bell.ring('missed', { name: this.name, tick: new Date(last), first: new Date(first) })
      if (this.#terms.catchesUp && due.length === 0) this.#start(last, this.#nextOf(last))
    }
    for (const at of due) this.#start(at, at + lateBy)
  }
  #start(at, startBy) {
    const times = { at, next: this.#nextOf(at), startBy }
    const active = this.#claims
      .claim(times)
      .then((claim2) => claim2 && this.#runs.run(times, claim2))
      .catch((error) => this.#bell.ring('error', { name: this.name, tick: new Date(at), error }))
      .finally(() => this.#active.delete(active))
    this.#active.add(active)
  }
  /** The last tick, if it came while the schedule existed and nobody was there. False: the store did not answer. */
  async #catchUp(now2) {
    const last = this.#ticks.upTo(now2)
    if (last === void 0) return true
    try {
      if ((await this.#knownSince(now2)) <= last) this.#start(last, this.#nextOf(last))
      return true
    } catch (error) {
      this.#bell.ring('error', { name: this.name, tick: new Date(last), error })
      return false
    }
  }
  /** Since when the schedule exists, which whoever comes first writes down: what was due before that was not missed. */
  async #knownSince(now2) {
    const { store: store2, courier } = this.#engine
    const key = `${this.#ask.key}@since`
    const ttlMs = Math.min(REMEMBER_MS, store2.maxTtlMs ?? REMEMBER_MS)
    const view = await this.#engine.look('a schedule that catches up', (asked) => asked.inspect?.(key))
    const [holder] = view.holders
    if (holder?.value !== void 0) {
      await courier.renew({ key, owner: holder.owner, ttlMs })
      return Date.parse(JSON.parse(holder.value).since)
    }
    const value = JSON.stringify({ since: new Date(now2).toISOString() })
    const note = await this.#engine.tryAcquire({
      ...this.#ask,
      key,
      ttlMs,
      value,
      autoRenew: false,
      maxHoldMs: void 0,
    })
    if (note) leaseOf(note).end()
    return now2
  }
  async #storeTime() {
    try {
      return await this.#clock.now(CLOCK_AGE_MS)
    } catch (error) {
      this.#bell.ring('error', { name: this.name, tick: void 0, error })
      return void 0
    }
  }
  #nextOf(tick) {
    return this.#ticks.after(tick) ?? tick + 864e5
  }
  #lateBy(tick) {
    return Math.min(Math.max((this.#nextOf(tick) - tick) / 2, LEAST_LATE_MS), MOST_LATE_MS)
  }
  #sleep(ms) {
    return new Promise((resolve) => {
      const { signal } = this.#stopping
      const wake = () => {
        cancel()
        signal.removeEventListener('abort', wake)
        resolve()
      }
      const cancel = this.#engine.world.after(ms, wake)
      signal.addEventListener('abort', wake)
    })
  }
}
function askFrom(defaults, name, { ttl, maxHold }, terms) {
  const ask = defaults.ask('schedule', name, {
    ...(ttl === void 0 ? {} : { ttl }),
    ...(maxHold === void 0 ? {} : { maxHold }),
  })
  return { ...ask, ttlMs: Math.max(ask.ttlMs, Math.ceil(terms.holdAtLeastMs)) }
}

// src/primitives/semaphore.ts
init_errors()
init_store()

// src/primitives/semaphore-slots.ts
init_errors()
init_store()
var STAND_MS = 250
var TIME_IS_UP = new Error('time is up')
var Slots = class {
  #engine
  #permits
  constructor(engine, permits) {
    this.#engine = engine
    this.#permits = permits
  }
  /** One attempt at each, from a random one on: null when all are taken. */
  async tryAcquire(ask) {
    const first = this.#any()
    for (let i = 0; i < this.#permits; i++) {
      const lock = await this.#engine.tryAcquire(this.#slot(ask, (first + i) % this.#permits))
      if (lock) return lock
    }
    return null
  }
  async acquire(ask) {
    const { world } = this.#engine
    const since = world.now()
    let refusal
    const onRefusal = (latest) => {
      refusal = latest
      return false
    }
    let failure
    for (;;) {
      try {
        const lock2 = await this.#lookAtAll({ ...ask, onRefusal }, since)
        if (lock2) return lock2
        failure = void 0
      } catch (error) {
        if (!(error instanceof StoreUnavailableError)) throw error
        failure = error
      }
      const waitedMs = world.now() - since
      if (waitedMs >= ask.waitMs) throw this.#gaveUp(ask, waitedMs, refusal, failure)
      const lock = await this.#standBeforeOne({ ...ask, onRefusal }, ask.waitMs - waitedMs)
      if (lock) return lock
    }
  }
  async #lookAtAll(ask, since) {
    if (ask.waitMs === 0) return this.tryAcquire(ask)
    const { world } = this.#engine
    const left = since + ask.waitMs - world.now()
    return within(world, left, ask.signal, (signal) => this.tryAcquire({ ...ask, signal }))
  }
  /** Whoever frees it wakes us. In an outage this is also the pause between two looks. */
  async #standBeforeOne(ask, left) {
    const { world } = this.#engine
    const slot = this.#slot(ask, this.#any())
    return within(world, Math.min(left, STAND_MS * (1 + world.random())), ask.signal, (signal) =>
      this.#engine.acquire({ ...slot, waitMs: Number.POSITIVE_INFINITY, signal }),
    )
  }
  #gaveUp(ask, waitedMs, refusal, failure) {
    const { name, kind } = ask
    if (failure || !refusal) {
      const reason = failure?.message ?? `${this.#engine.store.name} did not answer in time`
      return new StoreUnavailableError(`"${name}" could not be acquired: ${reason}`, { cause: failure })
    }
    const heldBy = refusal.blocker?.owner
    this.#engine.events.emit('timeout', () => ({ name, kind, waitedMs, heldBy }))
    return new LockTimeoutError(name, { waitedMs, heldBy })
  }
  #any() {
    return Math.floor(this.#engine.world.random() * this.#permits)
  }
  #slot(ask, index2) {
    return { ...ask, key: `${ask.key}#${index2}`, weight: ALL, capacity: ALL }
  }
}
async function within(world, ms, signal, ask) {
  if (signal?.aborted) throw signal.reason
  const limit = new AbortController()
  const cancel = Number.isFinite(ms) ? world.after(ms, () => limit.abort(TIME_IS_UP), true) : void 0
  const stopListening = signal && onAbort(signal, () => limit.abort(signal.reason))
  try {
    return await ask(limit.signal)
  } catch (error) {
    if (error === TIME_IS_UP) return void 0
    throw error
  } finally {
    cancel?.()
    stopListening?.()
  }
}

// src/primitives/semaphore.ts
var Semaphore = class {
  #engine
  #defaults
  #name
  /** Where the store cannot count. */
  #slots
  permits
  /** @internal */
  constructor(engine, defaults, name, permits) {
    if (!Number.isInteger(permits) || permits < 1 || permits > ALL) {
      throw new InvalidOptionError('permits', permits, `a whole number from 1 to ${ALL}`)
    }
    defaults.key('semaphore', name)
    this.#engine = engine
    this.#defaults = defaults
    this.#name = name
    this.permits = permits
    this.#slots = engine.store.features.counting ? void 0 : new Slots(engine, permits)
  }
  /** Waits for its permits and holds them until `release()`. */
  async acquire(options) {
    const ask = this.#ask(options)
    return this.#slots ? this.#slots.acquire(ask) : this.#engine.acquire(ask)
  }
  /** One attempt. Null when there are not enough permits, or others wait already. */
  async tryAcquire(options) {
    const ask = this.#ask(options)
    return this.#slots ? this.#slots.tryAcquire(ask) : this.#engine.tryAcquire(ask)
  }
  /** Runs `fn` while holding permits. Rejects with `LockLostError` if they were lost meanwhile. */
  async use(fn, options) {
    if (typeof fn !== 'function') throw new InvalidOptionError('fn', fn, 'a function to run with a permit')
    const lock = await this.acquire(options)
    return runUnder(lock, async () => fn(lock))
  }
  #ask(options) {
    const weight = options?.weight ?? 1
    if (!Number.isInteger(weight) || weight < 1 || weight > this.permits) {
      throw new InvalidOptionError('weight', weight, `a whole number from 1 to ${this.permits}, the number of permits`)
    }
    if (weight > 1 && this.#slots) {
      throw new UnsupportedError(
        `the ${this.#engine.store.name} store cannot count, so a semaphore there is made of single slots and weight must be 1: use the memory, SQLite, Redis or PostgreSQL lease-table store for weights`,
      )
    }
    const { mode } = options ?? {}
    if (mode !== void 0) throw new InvalidOptionError('mode', mode, 'no value here: a semaphore has weights instead')
    return { ...this.#defaults.ask('semaphore', this.#name, options), weight, capacity: this.permits }
  }
}

// src/primitives/web-locks.ts
init_errors()
init_store()
var WebLocks = class {
  #engine
  #defaults
  constructor(engine, defaults) {
    this.#engine = engine
    this.#defaults = defaults
  }
  async request(args) {
    if (args.length < 2) throw new TypeError(`request takes at least 2 arguments, but only ${args.length} were passed`)
    const name = domString(args[0])
    const options = readOptions(args.length === 2 ? void 0 : args[1])
    const callback = args.length === 2 ? args[1] : args[2]
    if (typeof callback !== 'function') throw new TypeError('the callback passed to request is not a function')
    refuseCombinations(name, options)
    options.signal?.throwIfAborted()
    const ask = this.#ask(name, options)
    const unwatch = this.#watch(ask.key)
    try {
      const lock = await this.#acquire(ask, options.ifAvailable === true)
      if (!lock) return await callback(null)
      if (options.signal?.aborted) await lock.release()
      options.signal?.throwIfAborted()
      return await this.#run(lock, ask, callback)
    } finally {
      unwatch()
    }
  }
  /**
   * Before asking: a lock may be stolen between its grant and the first time anybody looks at it, and where watching
   * is cheap that has to be heard.
   */
  #watch(key) {
    const { store: store2, bells, world } = this.#engine
    const bell = store2.watchesHeld ? bells.open(key) : void 0
    bell?.keep()
    return () => bell?.leave(world.now())
  }
  async query() {
    const prefix = `lock:${this.#defaults.prefix}`
    const holders = await this.#engine.look('query', (store2) => store2.holders?.(prefix))
    const contested = new Set(holders.filter((view) => view.waiting !== 0).map((view) => view.key))
    for (const { ask } of this.#engine.waiting()) if (ask.key.startsWith(prefix)) contested.add(ask.key)
    const looks = await Promise.all([...contested].map((key) => this.#look(key)))
    const uncontested = holders.filter((view) => !contested.has(view.key)).map((view) => this.#held(view))
    const held = [...looks.flatMap((look2) => look2.held), ...uncontested].sort(bySince)
    return {
      held: held.map(plain),
      pending: looks
        .flatMap((look2) => look2.pending)
        .sort(bySince)
        .map(plain),
    }
  }
  /** The store's line of one name, and behind it those of this process who do not stand there (yet). */
  async #look(key) {
    const { world } = this.#engine
    const at = world.now()
    const { holders, waiters } = await this.#engine.look('query', (store2) => store2.inspect?.(key))
    const own = [...this.#engine.waiting()].filter(({ ask }) => ask.key === key)
    const ownSince = new Map(own.map(({ owner: owner2, waitedMs }) => [owner2, world.now() - waitedMs]))
    const pending = waiters.map((view) => {
      const since = ownSince.get(view.owner) ?? at - (view.waitedMs ?? 0)
      return { ...this.#info(view), since }
    })
    const known = new Set([...holders, ...waiters].map((view) => view.owner))
    for (const { ask, owner: owner2, waitedMs } of own) {
      if (known.has(owner2)) continue
      pending.push({ ...this.#info({ key, owner: owner2, weight: ask.weight }), since: world.now() - waitedMs })
    }
    return { held: holders.map((view) => this.#held(view)), pending: inOrder(pending) }
  }
  #ask(name, options) {
    const { mode = 'exclusive', signal, steal } = options
    const key = `lock:${this.#defaults.prefix}${name}`
    if (!this.#engine.store.immediate) this.#defaults.key('lock', name)
    return {
      name,
      kind: 'lock',
      key,
      mode,
      weight: mode === 'shared' ? 1 : ALL,
      capacity: ALL,
      ttlMs: this.#defaults.ttlMs,
      waitMs: Number.POSITIVE_INFINITY,
      autoRenew: true,
      maxHoldMs: void 0,
      value: void 0,
      signal,
      steal: steal === true,
      inStoreLine: true,
    }
  }
  async #acquire(ask, ifAvailable) {
    const { store: store2 } = this.#engine
    if (ask.steal && !store2.revoke) {
      throw new UnsupportedError(`the ${store2.name} store cannot take a lock away: request without steal`)
    }
    if (!store2.features.line && !ask.steal && !ifAvailable) {
      throw new UnsupportedError(
        `request grants in the order of asking and needs a line, and the ${store2.name} store keeps none: use withLock, or request with ifAvailable`,
      )
    }
    try {
      return await (ifAvailable ? this.#engine.tryAcquire(ask) : this.#engine.acquire(ask))
    } catch (error) {
      if (error instanceof ClosedError) throw abortError(error.message, error)
      throw error
    }
  }
  /** Holds the lock until the callback's promise settles. A lock lost or stolen meanwhile ends the request at once. */
  async #run(lock, ask, callback) {
    const lease = leaseOf(lock)
    const { signal } = lock
    const refuseLoss = () => {
      lease.settle()
      if (lease.loss) throw abortError(`"${ask.name}" was lost or stolen: ${lease.loss.message}`, lease.loss)
    }
    let stopListening
    const lost = new Promise((resolve) => (stopListening = onAbort(signal, resolve))).then(refuseLoss)
    lost.catch(() => {})
    try {
      refuseLoss()
      const face = Object.freeze({ name: ask.name, mode: ask.mode })
      const running = (async () => callback(face))()
      running.catch(() => {})
      await Promise.race([running, lost])
      const result = await running
      refuseLoss()
      return result
    } finally {
      stopListening?.()
      await lock.release()
    }
  }
  /** Tokens tell the order of grants, being the store's microseconds. Only what is not ours has none. */
  #held(view) {
    const since = view.token === void 0 ? this.#engine.world.date() - (view.heldMs ?? 0) : Number(view.token) / 1e3
    return { ...this.#info(view), since }
  }
  #info({ key, weight, owner: owner2 }) {
    const name = key.slice(`lock:${this.#defaults.prefix}`.length)
    return { name, mode: weight === 1 ? 'shared' : 'exclusive', clientId: owner2.replace(/\/\d+$/, '') }
  }
}
function bySince(a, b) {
  return a.since - b.since
}
function inOrder(line) {
  for (const [i, waiter] of line.entries()) waiter.since = Math.max(waiter.since, line[i - 1]?.since ?? 0)
  return line
}
function plain({ name, mode, clientId }) {
  return { name, mode, clientId }
}
function readOptions(given) {
  if (given === void 0 || given === null) return {}
  if (typeof given !== 'object' && typeof given !== 'function')
    throw new TypeError('the options passed to request are not an object')
  const { ifAvailable, mode, signal, steal } = given
  const options = { ifAvailable: Boolean(ifAvailable), steal: Boolean(steal) }
  if (mode !== void 0) {
    const text2 = domString(mode)
    if (text2 !== 'exclusive' && text2 !== 'shared') {
      throw new TypeError(`the mode "${text2}" is neither "exclusive" nor "shared"`)
    }
    options.mode = text2
  }
  if (signal !== void 0) {
    if (!(signal instanceof AbortSignal)) throw new TypeError('the signal passed to request is not an AbortSignal')
    options.signal = signal
  }
  return options
}
function domString(value) {
  if (typeof value === 'symbol') throw new TypeError('a symbol cannot be converted to a string')
  return String(value)
}
function refuseCombinations(name, { mode, ifAvailable, steal, signal }) {
  const refuse = (message) => {
    throw new DOMException(message, 'NotSupportedError')
  }
  if (name.startsWith('-')) refuse('names cannot start with "-"')
  if (steal && ifAvailable) refuse('"steal" and "ifAvailable" cannot be used together')
  if (steal && mode === 'shared') refuse('"steal" is for exclusive locks')
  if (signal && (steal || ifAvailable)) refuse('"signal" cannot be used with "steal" or "ifAvailable"')
}
function abortError(message, cause) {
  const error = new DOMException(message, 'AbortError')
  Object.defineProperty(error, 'cause', { value: cause, configurable: true, writable: true })
  return error
}

// src/locks.ts
function createLocks(store2, options = {}) {
  return new Locks(store2, options, realWorld)
}
var Locks = class {
  #engine
  #defaults
  #lookout
  #webLocks
  /** Ends what waits without holding anything: limiters and schedules. */
  #closing = new AbortController()
  /** @internal */
  constructor(store2, options, world) {
    if (typeof store2?.acquire !== 'function') {
      throw new InvalidOptionError('store', store2, 'a store, such as memory() or sqlite(path)')
    }
    this.#defaults = new Defaults(store2, options)
    this.#engine = new Engine(store2, world)
    this.#lookout = new Lookout(this.#engine, this.#defaults)
    this.#webLocks = new WebLocks(this.#engine, this.#defaults)
  }
  /** Identifies this instance: the part that the `holder` of all its locks has in common. */
  get clientId() {
    return this.#engine.identity.instance
  }
  /**
   * Waits for the lock and holds it until `release()`. Rejects with `LockTimeoutError` when `wait` has passed.
   *
   * @example
   * ```ts
   * await using lock = await locks.acquire('daily-report', { wait: '5s' })
   * ```
   */
  acquire(name, options) {
    try {
      return this.#engine.acquire(this.#defaults.ask('lock', name, options))
    } catch (error) {
      return Promise.reject(error)
    }
  }
  /**
   * One attempt. Null when busy: busy is normal. Rejects at once when the store fails.
   *
   * @example
   * ```ts
   * const lock = await locks.tryAcquire('cron:cleanup')
   * if (!lock) return
   * ```
   */
  tryAcquire(name, options) {
    try {
      return this.#engine.tryAcquire(this.#defaults.ask('lock', name, options))
    } catch (error) {
      return Promise.reject(error)
    }
  }
  /**
   * Waits, runs `fn` while holding the lock, renews meanwhile, and releases: always. Resolves with what `fn` returned,
   * and only if the lock was held throughout; rejects with `LockLostError` if it was lost meanwhile.
   *
   * @example
   * ```ts
   * const invoice = await locks.withLock('invoice:7', (lock) => create({ signal: lock.signal }))
   * ```
   */
  async withLock(name, fn, options) {
    return withLock(this.#engine, this.#defaults.ask('lock', name, options), fn, options?.nested)
  }
  /**
   * A function that runs under the lock.
   *
   * @example
   * ```ts
   * const refresh = locks.wrap((user: string) => `refresh:${user}`, async (user) => reload(user))
   * await refresh('ada')
   * ```
   */
  wrap(name, fn, options) {
    return wrap((chosen, run2) => this.withLock(chosen, run2, options), name, fn)
  }
  /** Several names, all or nothing, without deadlock whatever order callers use. Names given twice count once. */
  async acquireAll(names, options) {
    return acquireAll(this.#engine, this.#defaults, names, options)
  }
  /**
   * Runs `fn` while holding all these names. Resolves only if all were held throughout.
   *
   * @example
   * ```ts
   * await locks.withLocks(['account:1', 'account:2'], (held) => transfer({ signal: held.signal }))
   * ```
   */
  async withLocks(names, fn, options) {
    return withLocks(this.#engine, this.#defaults, names, fn, options)
  }
  /** Readers share, a writer excludes, nobody starves. Shares its name with `acquire` and `withLock`. */
  readWrite(name, options = {}) {
    return new ReadWriteLock(this.#engine, this.#defaults, name, options)
  }
  /** At most `permits` at once across all processes. */
  semaphore(name, permits) {
    return new Semaphore(this.#engine, this.#defaults, name, permits)
  }
  /** One leader at a time. */
  election(name, options = {}) {
    return new Election(this.#engine, this.#defaults, name, options, this.#closing.signal)
  }
  /**
   * At most so much per time for each key, across all processes.
   *
   * @example
   * ```ts
   * const api = locks.limiter('api', { limit: 100, per: '1m' })
   * const { allowed, retryAfterMs } = await api.take(user)
   * ```
   */
  limiter(name, options) {
    return new Limiter(this.#engine, this.#defaults, name, options, this.#closing.signal)
  }
  /**
   * At most one recorded run per key across all processes. Callers at the same time wait for it, later ones get what it
   * returned (as JSON gives it back) until `retain` has passed. A run that throws records nothing, and the next caller
   * may try; after a crash before the result was recorded `fn` runs again.
   *
   * @example
   * ```ts
   * const receipt = await locks.once(`charge:${order}`, (lock) => charge(order, { signal: lock.signal }))
   * ```
   */
  async once(key, fn, options) {
    return once(this.#engine, this.#defaults, key, fn, options)
  }
  /**
   * Runs `fn` at the times of a cron expression (5 fields, or 6 with seconds first), at most one start per tick across
   * all instances. Ticks are judged by the store's clock. Begins at once; `stop()` ends it.
   *
   * @example
   * ```ts
   * const nightly = locks.schedule('report', '0 3 * * *', ({ tick }) => report(tick), { timezone: 'Europe/Berlin' })
   * ```
   */
  schedule(name, cron, fn, options = {}) {
    return new Schedule(this.#engine, this.#defaults, { name, cron, job: fn, options }, this.#closing.signal)
  }
  request(...args) {
    return this.#webLocks.request(args)
  }
  /** What is held and what is pending, as `navigator.locks.query` tells it. */
  query() {
    return this.#webLocks.query()
  }
  /** Everybody who holds something whose name begins with `prefix`. To look, never to decide by. */
  holders(prefix = '', options) {
    return this.#lookout.holders(prefix, options)
  }
  /** Who stands in line for a name, first come first. */
  waiters(name, options) {
    return this.#lookout.waiters(name, options)
  }
  /** The holders and the line of one name. */
  inspect(name, options) {
    return this.#lookout.inspect(name, options)
  }
  /** Break glass: ends every lease of this name, whoever holds it, and returns whom it cut off. */
  forceRelease(name, options) {
    return this.#lookout.forceRelease(name, options)
  }
  on(event, listener) {
    this.#engine.events.on(event, listener)
    return this
  }
  off(event, listener) {
    this.#engine.events.off(event, listener)
    return this
  }
  /** Releases everything this instance holds. */
  releaseAll() {
    return this.#engine.releaseAll()
  }
  /**
   * For a rolling deploy: no new grants; the signals of held locks abort with reason «closing»; callbacks may finish
   * within `grace` while their locks are renewed; then everything is released. The store is yours to close.
   */
  async close(options = {}) {
    const grace = milliseconds('grace', options.grace ?? '10s')
    this.#closing.abort(new ClosedError('closing: locks.close() was called'))
    await this.#engine.close(grace)
  }
  async [Symbol.asyncDispose]() {
    await this.close()
  }
}

// bench/zz-redis-tmp.mts
init_redis()
init_scripts()
var srv = spawn('redis-server', ['--port', '17392', '--save', '', '--dir', '/tmp/rq'], { stdio: 'ignore' })
await new Promise((r) => setTimeout(r, 500))
process.on('exit', () => srv.kill())
var c = new Redis('redis://127.0.0.1:17392')
var store = redis(c)
var ad = adapterOf(c)
var locks = createLocks(store)
var CD = await c.script(
  'LOAD',
  `if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end`,
)
var NX = await c.script('LOAD', `return redis.call('set',KEYS[1],ARGV[1],'NX','PX',ARGV[2])`)
var owner = 'host:1234:0190a0b0-1111-7222-8333-444455556666/12'
var S = composeScripts(embedded, false)
var claim = { key: 'lock:order:1', owner, weight: 2147483647, capacity: 2147483647, ttlMs: 3e4 }
await store.acquire([claim])
await store.release([claim])
var v = {
  bare: async () => {
    await c.set('b:x', owner, 'PX', 3e4, 'NX')
    await c.evalsha(CD, 1, 'b:x', owner)
  },
  nx: async () => {
    await c.evalsha(NX, 1, 'b:x', owner, '30000')
    await c.evalsha(CD, 1, 'b:x', owner)
  },
  rawA: async () => {
    await c.evalsha(S.acquire.sha, 2, 'leasehold:held:lock', 'lock:order:1', '9999999999999999', owner, '30000', '')
    await c.evalsha(CD, 1, 'lock:order:1', owner)
  },
  raw: async () => {
    await c.evalsha(S.acquire.sha, 2, 'leasehold:held:lock', 'lock:order:1', '9999999999999999', owner, '30000', '')
    await c.evalsha(S.release.sha, 2, 'leasehold:held:lock', 'lock:order:1', owner)
  },
  raw2: async () => {
    await ad.evalsha(S.acquire.sha, ['leasehold:held:lock', 'lock:order:1'], ['9999999999999999', owner, '30000', ''])
    await ad.evalsha(S.release.sha, ['leasehold:held:lock', 'lock:order:1'], [owner])
  },
  raw3: async () => {
    const r = await ad.evalsha(
      S.acquire.sha,
      ['leasehold:held:lock', 'lock:order:1'],
      [String(1994782e9 + Math.floor(performance.now() * 1e3)), owner, '30000', ''],
    )
    BigInt(r)
    await ad.evalsha(S.release.sha, ['leasehold:held:lock', 'lock:order:1'], [owner])
  },
  raw4: async () => {
    await ad
      .evalsha(S.acquire.sha, ['leasehold:held:lock', 'lock:order:1'], ['9999999999999999', owner, '30000', ''])
      .then((x) => [x])
      .then((x) => x)
    await ad
      .evalsha(S.release.sha, ['leasehold:held:lock', 'lock:order:1'], [owner])
      .then((x) => [x])
      .then((x) => x)
  },
  store: async () => {
    await store.acquire([claim])
    await store.release([claim])
  },
  core: async () => {
    const l = await locks.acquire('order:2')
    await l.release()
  },
}
if (process.argv[2]) {
  const f = v[process.argv[2]]
  for (let i = 0; i < 4e4; i++) await f()
  await locks.close()
  await store.close()
  c.disconnect()
  srv.kill()
  process.exit(0)
}
var wall = {}
for (let round = 0; round < 40; round++)
  for (const k in v) {
    const n = 500
    const t = performance.now()
    for (let i = 0; i < n; i++) await v[k]()
    ;(wall[k] ??= []).push(((performance.now() - t) / n) * 1e3)
  }
var q = (a, p) => [...a].sort((x, y) => x - y)[Math.floor(a.length * p)]
for (const k in v)
  console.log(
    k.padEnd(6),
    'min',
    q(wall[k], 0).toFixed(1),
    'p25',
    q(wall[k], 0.25).toFixed(1),
    'ratio',
    (q(wall[k], 0.25) / q(wall.bare, 0.25)).toFixed(3),
    'min',
    (q(wall[k], 0) / q(wall.bare, 0)).toFixed(3),
  )
await locks.close()
await store.close()
c.disconnect()
srv.kill()
