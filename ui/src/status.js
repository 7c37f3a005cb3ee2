// SPDX-License-Identifier: MPL-2.0

// The status of the federation, which the server sends as events.
import { useEffect, useState } from 'preact/hooks'
import { get } from './api.js'

export const statusPath = '/v1/agent/federation-status'

// silentAfter is the time without an event after which the connection is broken,
// in ms. The server sends an event at least every 5 s.
const silentAfter = 12_000
const retryAfter = 1500
// maxPoints bounds the history of each datacenter, which lasts an hour.
const maxPoints = 720

// current is the last status, with its number and the state of the connection.
let current = { status: null, version: 0, at: 0, live: false, error: '' }
const listeners = new Set()

// history has the round-trip times since the page was opened, by datacenter:
// times in seconds since 1970, and milliseconds or null.
export const history = new Map()

function change(part) {
  current = { ...current, ...part }
  for (const listener of listeners) listener(current)
}

// useStatus returns {status, version, at, live, error}.
export function useStatus() {
  const [value, set] = useState(current)
  useEffect(() => {
    listeners.add(set)
    set(current)
    return () => listeners.delete(set)
  }, [])
  return value
}

// pathOf returns the path that carries the traffic to a datacenter, or the best
// one.
export function pathOf(dc) {
  const paths = dc.paths ?? []
  return paths.find((p) => p.used) ?? paths.find((p) => p.health === 'ok') ?? paths[0]
}

// rttOf returns the round-trip time to a datacenter in seconds, or null while no
// path works.
export function rttOf(dc) {
  const path = pathOf(dc)
  return dc.outbound === 'ok' && path?.rtt != null ? path.rtt : null
}

function remember(status) {
  const now = Date.now() / 1000
  for (const dc of status.datacenters) {
    if (dc.own) continue
    const points = history.get(dc.name) ?? [[], []]
    history.set(dc.name, points)
    const rtt = rttOf(dc)
    points[0].push(now)
    points[1].push(rtt == null ? null : rtt * 1000)
    if (points[0].length > maxPoints) points.forEach((list) => list.shift())
  }
}

let source, watchdog

// follow connects to the server, and again after each loss of the connection. A
// hidden page has no connection: browsers permit only six to one server.
export function follow() {
  stop()
  if (document.hidden) return
  source = new EventSource(`${statusPath}?watch`)
  arm()
  source.addEventListener('status', (e) => {
    arm()
    const status = JSON.parse(e.data)
    remember(status)
    change({ status, version: current.version + 1, at: Date.now(), live: true, error: '' })
  })
  source.addEventListener('end', (e) => lost(JSON.parse(e.data).error))
  source.addEventListener('error', () => lost('The server does not respond.'))
}

function arm() {
  clearTimeout(watchdog)
  watchdog = setTimeout(() => lost('The server does not send its status.'), silentAfter)
}

function stop() {
  source?.close()
  source = undefined
  clearTimeout(watchdog)
}

// lost closes the connection, and tries again unless the server refuses the
// caller.
async function lost(error) {
  stop()
  change({ live: false, error: current.error || error })
  let refused = false
  try {
    await get(statusPath)
  } catch (err) {
    if (err.status) change({ error: err.message })
    refused = err.status >= 400 && err.status < 500
  }
  if (!refused) watchdog = setTimeout(follow, retryAfter)
}

document.addEventListener('visibilitychange', follow)
