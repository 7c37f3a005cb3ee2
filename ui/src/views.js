// SPDX-License-Identifier: MPL-2.0

import { useEffect, useRef, useState } from 'preact/hooks'
import { get, sleep, visible } from './api.js'
import { statusPath } from './status.js'

// maxViews bounds the datacenters that are requested.
const maxViews = 12
// interval is the time between two rounds of requests, and timeout bounds one
// request, in ms.
const interval = 1500
const timeout = 3000

// useViews returns the status as the other datacenters see it. They show whether
// they reach each other, without addresses and causes. A datacenter that does not
// respond or refuses is left out.
export function useViews(status) {
  const [views, set] = useState([])
  const latest = useRef()
  latest.current = status
  useEffect(() => {
    const end = new AbortController()
    const refused = new Set() // each refusal is a line of the audit log
    const round = async () => {
      const others = latest.current?.datacenters.filter((d) => !d.own) ?? []
      if (others.length < 2) return []
      const got = []
      for (const d of others.filter((o) => o.outbound === 'ok' && !refused.has(o.name)).slice(0, maxViews)) {
        try {
          got.push((await get(`${statusPath}?dc=${d.name}`, AbortSignal.any([end.signal, AbortSignal.timeout(timeout)]))).body)
        } catch (err) {
          if (err.status === 403) refused.add(d.name)
        }
      }
      return got
    }
    const run = async () => {
      while (!end.signal.aborted) {
        await visible()
        const got = await round()
        if (!end.signal.aborted) set(got)
        await sleep(interval, end.signal)
      }
    }
    run()
    return () => end.abort()
  }, [])
  return views.filter((v) => status?.datacenters.some((d) => d.name === v.datacenter && d.outbound === 'ok'))
}
