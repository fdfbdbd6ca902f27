/**
 * Rate limits and idempotency for HTTP: header values, and middleware for Fetch-style handlers, Express and Fastify.
 *
 * @module
 */
export type { IdempotencyOptions } from './idempotency.js'
export { idempotentExpress } from './idempotent-express.js'
export {
  type FastifyApp,
  type FastifyKeyedRequest,
  type FastifyPlugin,
  type FastifyWholeReply,
  idempotentFastify,
} from './idempotent-fastify.js'
export { idempotentFetch } from './idempotent-fetch.js'
export { idempotentHandler, type NodeHandler, type NodeNext } from './idempotent-handler.js'
export type { NodeMiddleware, NodeRequest } from './node-request.js'
export {
  type FastifyReplyLike,
  type FastifyRequestLike,
  limitExpress,
  limitFastify,
  limitFetch,
  type RateLimitOptions,
} from './rate-limit.js'
export { rateLimitHeaders } from './rate-limit-headers.js'
export {
  expressRateLimitStore,
  type ExpressRateLimitStore,
  type FastifyRateLimitCallback,
  type FastifyRateLimitParams,
  type FastifyRateLimitStore,
  fastifyRateLimitStore,
  type ThrottlerStorage,
  throttlerStorage,
} from './rate-limit-stores.js'
