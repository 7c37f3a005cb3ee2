// SPDX-License-Identifier: MPL-2.0

// rtt formats a time in seconds as milliseconds.
export function rtt(seconds) {
  if (seconds == null) return '–'
  const ms = seconds * 1000
  return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`
}

// age formats a time in seconds with its largest unit.
export function age(seconds) {
  if (seconds == null) return '–'
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`
  }
  return seconds < 1 && seconds > 0 ? '< 1 s' : `${Math.floor(seconds)} s`
}

// ago formats the time since an ISO 8601 time.
export function ago(time) {
  if (!time) return '–'
  return `${age(Math.max(0, (Date.now() - new Date(time)) / 1000))} ago`
}

// count formats a number of things, in the singular or plural.
export function count(n, thing) {
  return `${n.toLocaleString('en')} ${thing}${n === 1 ? '' : 's'}`
}

// bytes formats a size.
export function bytes(n) {
  return n < 1024 ? `${n} B` : n < 1 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`
}

// decode converts base64 to bytes.
export function decode(base64) {
  return Uint8Array.from(atob(base64 ?? ''), (c) => c.charCodeAt(0))
}

// text returns bytes as UTF-8 text, or null if they are not text.
export function text(data) {
  try {
    const s = new TextDecoder('utf-8', { fatal: true }).decode(data)
    return /[\u0000-\u0008\u000e-\u001f]/.test(s) ? null : s
  } catch {
    return null
  }
}

// escapePath escapes each part of a path. It keeps the slashes.
export function escapePath(path) {
  return path.split('/').map((part) => (/^\.{1,2}$/.test(part) ? part.replaceAll('.', '%2E') : encodeURIComponent(part))).join('/')
}
