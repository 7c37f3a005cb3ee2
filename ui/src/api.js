// SPDX-License-Identifier: MPL-2.0

// Requests to the HTTP API of the server that serves this page.
import { useEffect, useState } from 'preact/hooks'

// maxBytes bounds a response. The browser stops the transfer of a larger one.
const maxBytes = 8 << 20
// retryAfter is the time between a failed request and the next one, in ms.
const retryAfter = 3000

// sleep waits, or until signal ends it.
export const sleep = (ms, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, ms)
    signal?.addEventListener('abort', () => (clearTimeout(timer), done()))
  })

// visible returns when the page is visible.
export const visible = () =>
  new Promise((done) => {
    if (!document.hidden) return done()
    document.addEventListener('visibilitychange', () => done(), { once: true })
  })

// RequestError is a response with an error status. Its message is the text of
// the response.
export class RequestError extends Error {
  constructor(status, message) {
    super(message || `status ${status}`)
    this.status = status
  }
}

async function readBounded(response) {
  const chunks = []
  let size = 0
  const reader = response.body.getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    chunks.push(value)
    if ((size += value.length) > maxBytes) {
      await reader.cancel()
      throw new RequestError(413, 'The list is larger than 8 MiB and is not shown. Choose a longer prefix, or use the command line.')
    }
  }
  return new Blob(chunks).text()
}

// get sends a GET request. A response of 404 without a text has the body null.
// Errors: RequestError, or the error of fetch without a connection.
export async function get(path, signal) {
  const response = await fetch(path, { signal, cache: 'no-store' })
  const text = await readBounded(response)
  if (response.status === 404 && !text) return { body: null, index: response.headers.get('X-Consul-Index') }
  if (!response.ok) throw new RequestError(response.status, text.trim())
  const isJSON = response.headers.get('Content-Type')?.startsWith('application/json')
  return { body: isJSON ? JSON.parse(text) : text, index: response.headers.get('X-Consul-Index') }
}

const problem = (err) => (err instanceof RequestError ? err.message : 'The server does not respond.')

// useQuery returns {body, error, loading} of a path, and follows its changes with
// blocking queries if the endpoint has them. A request that the server refuses is
// not repeated.
export function useQuery(path) {
  const [result, set] = useState({ path, loading: true })
  useEffect(() => {
    if (!path) return
    const end = new AbortController()
    const run = async () => {
      let index = 0
      while (!end.signal.aborted) {
        await visible()
        const wait = index ? `${path.includes('?') ? '&' : '?'}index=${index}&wait=60s` : ''
        try {
          const got = await get(path + wait, end.signal)
          if (end.signal.aborted) return
          set({ path, body: got.body })
          if (!got.index) return
          index = got.index
        } catch (err) {
          if (end.signal.aborted) return
          set((old) => ({ path, body: old.path === path ? old.body : undefined, error: problem(err) }))
          if (err.status >= 400 && err.status < 500) return
          index = 0
          await sleep(retryAfter, end.signal)
        }
      }
    }
    run()
    return () => end.abort()
  }, [path])
  return result.path === path ? result : { loading: true }
}

// useFetch returns {body, error, loading} of a path. It repeats the request when
// version changes.
export function useFetch(path, version) {
  const [result, set] = useState({ path, loading: true })
  useEffect(() => {
    const end = new AbortController()
    get(path, end.signal).then(
      ({ body }) => set({ path, body }),
      (err) => end.signal.aborted || set({ path, error: problem(err) }),
    )
    return () => end.abort()
  }, [path, version])
  return result.path === path ? result : { loading: true }
}
